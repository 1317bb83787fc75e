"""`--resume-from`: the tokens of an answer whose stream broke, as they are printed and as a user gives them back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

from specsplit.cli.say import say
from specsplit.errors import InvalidRequest, Unavailable, quoted

_LIST = re.compile(r"\s*\d{1,20}(?:[\s,]+\d{1,20})*\s*", re.ASCII)
"""No id is longer; what is far longer Python does not read as a number."""
_OPTION = "--resume-from"


def tokens_of(given: str | None) -> tuple[int, ...]:
    """Read the ids that are given, or that the file of this name holds: such a list, one of JSON, or the object that --json printed.

    Raises InvalidRequest for what is none of these.
    """
    if given is None:
        return ()
    text = given if _LIST.fullmatch(given) else _read(given)
    found = [int(each) for each in re.findall(r"\d+", text)] if _LIST.fullmatch(text) else _from_json(text)
    if found is None:
        expected = "a list such as 5,17,9, or the object that --json prints"
        raise InvalidRequest(_OPTION, f"the file {quoted(given)} holds no token ids; expected {expected}")
    return tuple(found)


def advise_resuming(error: Unavailable, text: str | None) -> Unavailable:
    """Print the tokens that had come where the user can keep them: as an object beside the `text` of them, or on stderr.

    Returns the error that says how the command gets the rest.
    """
    given = "them" if text is None else "this object, in a file,"
    advised = Unavailable(f"{error.message}: the same command with {given} as {_OPTION} gets the rest")
    if text is None:
        say(f"{_OPTION} {','.join(map(str, error.received))}", err=True)
    else:
        say(json.dumps({"text": text, "resume_from": error.received, "error": str(advised)}))
    return advised


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        problem = f"is {quoted(path)}, expected token ids such as 5,17,9, or a file that holds them ({why})"
        raise InvalidRequest(_OPTION, problem) from error


def _from_json(text: str) -> list[int] | None:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict):
        fields = cast("dict[str, Any]", found)
        found = fields.get("resume_from", fields.get("token_ids"))
    is_list = isinstance(found, list) and all(type(each) is int and each >= 0 for each in cast("list[object]", found))
    return cast("list[int]", found) if is_list else None
