"""The log of what operators change: from what to what, and who asked for it."""

from __future__ import annotations

import logging
from urllib.parse import unquote

from specsplit.observe import fields
from specsplit.rpc import Context, caller
from specsplit_coordinator.members.orders import Changed

_log = logging.getLogger(__name__)

AS_SET = "as set"
"""Stands for a field that nobody has changed."""
NOT_ASKED = "(nobody is asked)"
"""Stands for the name of a caller where callers are not asked who they are."""


def log_change(what: str, changed: Changed, told: int, context: Context) -> None:
    """Log, as of this call, that so many members are told of a change. A call that changed nothing leaves no line."""
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
