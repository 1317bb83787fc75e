"""Recorded requests of one client, in the tokens of the model that answered them: a file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TRACES = Path(__file__).resolve().parent / "traces"


@dataclass(frozen=True)
class Turn:
    """One request and its answer."""

    prompt: tuple[int, ...]
    """All that came before the answer, earlier turns of the same conversation included."""
    output: tuple[int, ...]
    """At least one token."""


def read(file: Path) -> list[Turn]:
    """Read turns in the order in which they were recorded. Raises ValueError, naming the line, for a file that holds none."""
    turns: list[Turn] = []
    before: tuple[int, ...] = ()
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found = json.loads(line)
            said, output = tuple(found["said"]), tuple(found["output"])
            before = before if found["continues"] else ()
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f'line {number} of {file} is no turn {{"continues", "said", "output"}}: {error!r}'
            ) from error
        turns.append(Turn(before + said, output))
        before = turns[-1].prompt + output
    return turns


def write(file: Path, conversations: Iterable[Sequence[Turn]]) -> None:
    """Write the turns of several conversations. Raises ValueError if the prompt of a later turn does not begin with the turn before it."""
    lines: list[str] = []
    for turns in conversations:
        before: tuple[int, ...] = ()
        for number, turn in enumerate(turns):
            if turn.prompt[: len(before)] != before:
                raise ValueError(f"turn {number} does not begin with the turn before it")
            said = turn.prompt[len(before) :]
            record = {"continues": number > 0, "said": said, "output": turn.output}
            lines.append(json.dumps(record, separators=(",", ":")) + "\n")
            before = turn.prompt + turn.output
    file.write_text("".join(lines), encoding="utf-8")
