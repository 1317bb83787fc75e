"""Callers that leave while they are being written to. grpc.aio takes that for an error of the servicer, and logs it with a traceback."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)
_GRPC = "grpc._cython.cygrpc"
_OF_A_WRITE = "ExecuteBatchError raised in core by servicer method"


class Departures(logging.Filter):
    """Passes on what grpc.aio logs, but for such a departure: that is logged in a line of our own."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a departure."""
        sentence = record.getMessage()
        if not sentence.startswith(_OF_A_WRITE):
            return True
        _log.info(
            "a message did not reach its caller, who left or takes none so large:%s", sentence.removeprefix(_OF_A_WRITE)
        )
        return False


_DEPARTURES = Departures()


def tell_departures() -> None:
    """From now on departures are no errors in this process's log. A second call does nothing."""
    logging.getLogger(_GRPC).addFilter(_DEPARTURES)
