"""What honest parties said to one another, to be mutated."""

from __future__ import annotations

import base64
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
        self._by_method: dict[str, list[Conversation]] = {}
        for each in conversations:
            self._by_method.setdefault(each.method, []).append(each)

    def of(self, method: str) -> Sequence[Conversation]:
        """Every conversation of one method; none if it was never called."""
        return self._by_method.get(method, [])

    def requests(self, method: str) -> list[bytes]:
        """Every request of one method."""
        return [request for each in self.of(method) for request in each.requests]

    def answers(self, method: str) -> list[bytes]:
        """Every answer of one method."""
        return [answer for each in self.of(method) for answer in each.answers]

    @property
    def counts(self) -> dict[str, int]:
        """Messages of both sides, by method."""
        return {method: len(self.requests(method)) + len(self.answers(method)) for method in self._by_method}

    def write(self, path: Path) -> None:
        """A line of JSON for every conversation."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(_told(each)) for found in self._by_method.values() for each in found]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Corpus:
        """What `write` wrote."""
        return cls(_heard(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())


def _told(each: Conversation) -> dict[str, object]:
    sides = {"requests": each.requests, "answers": each.answers}
    return {
        "method": each.method,
        **{side: [base64.b64encode(data).decode() for data in said] for side, said in sides.items()},
    }


def _heard(told: dict[str, list[str]]) -> Conversation:
    requests, answers = ([base64.b64decode(data) for data in told[side]] for side in ("requests", "answers"))
    return Conversation(str(told["method"]), requests, answers)
