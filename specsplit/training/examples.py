"""The files that users bring: conversations, prompts and texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from specsplit.errors import InvalidRequest, quoted

Messages = tuple[tuple[str, str], ...]
"""(role, content), first to last."""
ASSISTANT: Final = "assistant"
_JSON_LINES: Final = (".jsonl", ".ndjson", ".json")
_EXPECTED: Final = 'expected {"messages": [...]}, {"prompt": "..."} or {"text": "..."}'


@dataclass(frozen=True)
class Example:
    """One conversation, prompt or text; exactly one of the three is there."""

    place: str
    """File and line, for errors."""
    messages: Messages = ()
    prompt: str = ""
    text: str = ""


def read_examples(files: Sequence[Path]) -> list[Example]:
    """Read all files: of .jsonl, .ndjson and .json every line is one, any other file is one text.

    Raises InvalidRequest, naming file and line, for what cannot be read or is of no known shape, and if there is nothing at all.
    """
    found = [example for file in files for example in _of_file(file)]
    if not found:
        raise InvalidRequest(
            "--data", f"{', '.join(map(str, files))} holds nothing; {_EXPECTED} on every line, or plain text"
        )
    return found


def _of_file(file: Path) -> Iterator[Example]:
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("--data", f"{file} cannot be read as UTF-8 text: {error}") from error
    if file.suffix.lower() not in _JSON_LINES:
        if content.strip():
            yield Example(str(file), text=content)
        return
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            yield _of_line(f"{file}, line {number}", line)


def _of_line(place: str, line: str) -> Example:
    try:
        entry: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            "--data", f"{place} is no JSON ({error}): {quoted(line)}; {_EXPECTED} on every line"
        ) from error
    facts = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    named = [name for name in ("messages", "prompt", "text") if name in facts]
    if len(named) != 1:
        raise InvalidRequest(
            "--data", f"{place} has {' and '.join(named) or 'none of its keys'}: {quoted(line)}; {_EXPECTED}"
        )
    value = facts[named[0]]
    if named[0] == "messages":
        return Example(place, messages=_messages(place, value))
    if not isinstance(value, str) or not value.strip():
        raise InvalidRequest("--data", f"{place}: {named[0]} is no text: {quoted(repr(value))}; {_EXPECTED}")
    return Example(place, prompt=value) if named[0] == "prompt" else Example(place, text=value)


def _messages(place: str, value: object) -> Messages:
    entries = cast("list[object]", value) if isinstance(value, list) else []
    messages: list[tuple[str, str]] = []
    for entry in entries:
        facts = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        role, content = facts.get("role"), facts.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            raise InvalidRequest(
                "--data",
                f'{place}: a message is {quoted(repr(entry))}, expected {{"role": "...", "content": "..."}} of texts',
            )
        messages.append((role, content))
    if not any(role != ASSISTANT for role, _ in messages):
        raise InvalidRequest(
            "--data", f"{place}: messages holds nothing that is said to the assistant; expected a user's message"
        )
    return tuple(messages)
