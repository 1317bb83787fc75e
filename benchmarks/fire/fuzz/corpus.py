"""What honest parties said to one another, by method: hostile ones begin with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Conversation:
    """One call, both sides of it, as bytes."""

    method: str
    """/service/Method."""
    requests: list[bytes] = field(default_factory=list[bytes])
    answers: list[bytes] = field(default_factory=list[bytes])


class Corpus:
    """Conversations by method."""

    def __init__(self, conversations: Iterable[Conversation]) -> None:
        self._all = list(conversations)

    def of(self, method: str) -> Sequence[Conversation]:
        """Every conversation of one method; none if it was never called."""
        return [each for each in self._all if each.method == method]

    def requests(self, method: str) -> list[bytes]:
        """Every request of one method."""
        return [request for each in self.of(method) for request in each.requests]

    def answers(self, method: str) -> list[bytes]:
        """Every answer of one method."""
        return [answer for each in self.of(method) for answer in each.answers]

    @property
    def counts(self) -> dict[str, int]:
        """Messages of both sides, by method."""
        methods = dict.fromkeys(each.method for each in self._all)
        return {method: len(self.requests(method)) + len(self.answers(method)) for method in methods}

    def write(self, path: Path) -> None:
        """Write all of it, as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        sides = (
            (each.method, *([data.hex() for data in side] for side in (each.requests, each.answers)))
            for each in self._all
        )
        path.write_text(json.dumps([*sides]), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Corpus:
        """What `write` wrote."""
        told = json.loads(path.read_text(encoding="utf-8"))
        return cls(Conversation(method, *([*map(bytes.fromhex, side)] for side in sides)) for method, *sides in told)
