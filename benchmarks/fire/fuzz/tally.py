"""What a run of the fuzz part has sent, how that was answered, and what was wrong. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from benchmarks.fire.findings import Findings
from benchmarks.fire.fuzz.calls import Ended, Method
from benchmarks.fire.fuzz.draws import Case

AIM: Final = "10^6"
"""Fuzzed messages that a long run should reach."""
_LONGEST: Final = 400
"""Characters of a fault that are told."""
_TOLD: Final = 5
"""Cases with a fault that are to be played again, at most."""


@dataclass
class Tally:
    """What was sent in one run, and what came of it."""

    say: Callable[[str], None] = lambda _: None
    """Called with every fault at once."""
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

    def ended(self, case: Case, method: Method, end: Ended) -> None:
        """A hostile caller's call is over."""
        if end.sent:
            self.messages[method.name] += end.sent
        self.status(method.name, end.code.name)
        if (fault := end.fault(method)) is not None:
            self.fault(case, fault)

    def status(self, rpc: str, name: str) -> None:
        """A call ended so."""
        self.statuses.setdefault(rpc, Counter())[name] += 1

    def fault(self, case: Case, sentence: str) -> None:
        """Something is wrong; it came of this case, or of one that ran beside it."""
        self.faults.append(f"{case.name}: {sentence[:_LONGEST]}")
        self.say(self.faults[-1])

    def suspect(self) -> None:
        """A process has died; it came of one of the cases that are under way. Only the first time counts."""
        self.suspects = self.suspects or sorted(case.name for case in self.running)

    @property
    def blamed(self) -> list[str]:
        """Names of the first cases that a fault was told of, and of those under way when a process died."""
        told = [fault.partition(": ")[0] for fault in self.faults]
        return list(dict.fromkeys([*told[:_TOLD], *self.suspects]))

    @property
    def told(self) -> str:
        """How far it is."""
        return f"{self.messages.total():,} messages in {self.cases:,} cases, {len(self.faults)} faults"

    def report(self, findings: Findings) -> None:
        """Write the rows of what was sent, and how it was answered."""
        findings.add("fuzzed messages", self.messages.total(), AIM)
        findings.at_least("cases", self.cases, 1)
        for rpc, messages in self.messages.most_common():
            findings.add(f"messages: {rpc}", messages)
        for rpc, statuses in sorted(self.statuses.items()):
            findings.add(f"ended: {rpc}", ", ".join(f"{status} {count:,}" for status, count in statuses.most_common()))
        findings.must_be_none("bad ends", self.faults)
