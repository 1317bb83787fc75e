"""What a run of the fuzz part has sent, how that was answered, and what was wrong. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from benchmarks.fire.fuzz.calls import Ended, Method
from benchmarks.fire.fuzz.case import Case

_LONGEST = 400
"""Characters of a fault that are told."""
_TOLD = 5
"""Cases with a fault that are to be played again, at most."""


@dataclass
class Tally:
    """What was sent in one run, and what came of it."""

    messages: Counter[str] = field(default_factory=Counter[str])
    """Fuzzed messages by RPC; those that answer honest callers are counted as "RPC, answers"."""
    statuses: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    """How calls ended, by RPC."""
    faults: list[str] = field(default_factory=list[str])
    """A sentence on each bad end, with the case."""
    running: set[Case] = field(default_factory=set[Case])
    """Cases that are under way."""
    suspects: list[str] = field(default_factory=list[str])
    """Names of the cases that were under way when a process died."""
    cases: int = 0

    @property
    def sent(self) -> int:
        """Fuzzed messages so far."""
        return self.messages.total()

    def ended(self, case: Case, method: Method, end: Ended) -> None:
        """A hostile caller's call is over."""
        self.messages[method.name] += end.sent
        self.status(method.name, end.code.name)
        if (fault := end.fault(method)) is not None:
            self.fault(case, fault)

    def status(self, rpc: str, name: str) -> None:
        """A call ended so."""
        self.statuses.setdefault(rpc, Counter())[name] += 1

    def answered(self, rpc: str, messages: int) -> None:
        """A hostile server has sent so many."""
        self.messages[f"{rpc}, answers"] += messages

    def fault(self, case: Case, sentence: str) -> None:
        """Something is wrong; it came of this case, or of one that ran beside it."""
        self.faults.append(f"{case.name}: {sentence[:_LONGEST]}")

    def suspect(self) -> None:
        """A process has died; it came of one of the cases that are under way. Only the first time counts."""
        self.suspects = self.suspects or sorted(case.name for case in self.running)

    @property
    def blamed(self) -> list[str]:
        """Names of the first cases that a fault was told of, and of those under way when a process died."""
        told = [fault.partition(": ")[0] for fault in self.faults]
        return list(dict.fromkeys([*told[:_TOLD], *self.suspects]))
