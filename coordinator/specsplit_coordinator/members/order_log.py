"""Log lines about orders: what was changed, from what to what, and by whom."""

from __future__ import annotations

import logging
from urllib.parse import unquote

from specsplit.observe import fields
from specsplit.rpc import Context, caller
from specsplit_coordinator.members.orders import Changed

_log = logging.getLogger(__name__)

AS_SET = "as set"
"""What the log says of a field that no order changes."""
NOT_ASKED = "(nobody is asked)"
"""What the log says of a caller where callers are not authenticated."""


def log_change(what: str, changed: Changed, told: int, context: Context) -> None:
    """Log a change that a call made, with the number of members that are told of it. A call that changed nothing is not logged."""
    if not changed:
        return
    values = {name: f"{_shown(was)} -> {_shown(now)}" for name, (was, now) in changed.items()}
    by, peer = caller().name or NOT_ASKED, unquote(context.peer())
    _log.info("%s changed", what, extra=fields(**values, told=told, by=by, peer=peer))


def _shown(value: object) -> str:
    match value:
        case None:
            return AS_SET
        case tuple():
            return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            return str(value)
