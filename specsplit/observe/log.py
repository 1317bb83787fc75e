"""Logging to stderr, one line per record: time, level, service, logger, sentence, then key=value.

stdout stays free for what a program prints on purpose.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

from specsplit.settings import Settings

_FIELDS = "specsplit_fields"


class _LineFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it if there is one."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        values: Mapping[str, object] = record.__dict__.get(_FIELDS, {})
        parts = [moment, record.levelname.lower(), self._service, record.name, record.getMessage()]
        line = " ".join(parts + [f"{key}={_quoted(value)}" for key, value in values.items()])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _quoted(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(character.isspace() or character in "=\"'" for character in text) else text


def fields(**values: object) -> dict[str, dict[str, object]]:
    """Key=value pairs for a record: `log.info("session opened", extra=fields(session=3))`."""
    return {_FIELDS: values}


def set_up(service: str, level: str = "info") -> None:
    """Send this process's records from `level` up to stderr, replacing an earlier set-up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter(service))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each.formatter, _LineFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


def announce(service: str, settings: Settings) -> None:
    """Log the resolved settings; called once, at start."""
    logging.getLogger("specsplit").info("%s starts", service, extra=fields(**settings.resolved()))
