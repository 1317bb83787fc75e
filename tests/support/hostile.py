"""Values of any dataclass with text in every string that no terminal should obey and no markup should eat."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from specsplit.values.host import CoreRange, Host

HOSTILE = "[/x][bold]:smile:[fd00::1]\x1b[2J\x9b2J\x07\r\n\u202e"
SHOWN = r"[/x][bold]:smile:[fd00::1]\x1b[2J\x9b2J\x07\r\n\u202e"
"""The same as a terminal may show it."""
FORBIDDEN = ("\x1b[2J", "\x9b", "\x07", "\r", "\u202e")
_HOST = Host("machine", (CoreRange(0, 1),), 1)
"""Its names are refused where it is made if they cannot be shown."""
_PLAIN: dict[type, object] = {str: HOSTILE, int: 1, float: 0.5, bool: True, Host: _HOST}
_DEPTH = 6


def made(kind: Any, depth: int = 0, **fixed: object) -> Any:
    """A value of this type: every optional thing is there, every sequence has one entry, every string is HOSTILE."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin in (Union, types.UnionType):
        return made(next(each for each in arguments if each is not type(None)), depth)
    if origin is tuple:
        return (made(arguments[0], depth + 1),) if depth < _DEPTH else ()
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(cast("type[Enum]", kind)))
    assert is_dataclass(kind), f"{kind} is of a kind that this does not know: teach it"
    hints = get_type_hints(kind)
    values = {
        each.name: fixed[each.name] if each.name in fixed else _field(each.name, hints[each.name], depth)
        for each in fields(kind)
        if each.init
    }
    return cast("Any", kind)(**values)


def _field(name: str, kind: Any, depth: int) -> object:
    return 0 if name == "rank" else made(kind, depth + 1)
