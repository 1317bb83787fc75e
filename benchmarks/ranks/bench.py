"""The measurements: turns with some of the ranks busy, waking a parked group, and what a parked group uses. A verifier alone beside it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.ranks.counters import Counters, Processor, read
from benchmarks.ranks.group import is_parked
from specsplit.client import Client
from specsplit.errors import DeadlineExceeded

PARK_S = 30.0
Advance = Callable[[str], None]


@dataclass(frozen=True)
class Way:
    """A group, or a verifier alone, with a coordinator of its own."""

    name: str
    client: Client
    metrics: Sequence[str]
    """Where its verifiers tell their metrics."""
    pids: Sequence[int]
    """Process ids of its verifiers."""

    @property
    def ranks(self) -> int:
        """How many verifiers there are."""
        return len(self.pids)


class Cell(NamedTuple):
    """What is measured over and over."""

    way: str
    drafter: str
    callers: int


@dataclass
class Turns:
    """What the visits of one cell gave."""

    turns_per_s: list[float] = field(default_factory=list[float])
    tokens_per_s: list[float] = field(default_factory=list[float])
    counters: Counters = field(default_factory=Counters)
    """Over all visits and verifiers."""
    busy: list[int] = field(default_factory=list[int])
    """On how many verifiers the callers of a visit were."""


def visit(way: Way, drafter: str, prompts: Sequence[Sequence[int]], new: int, into: Turns) -> None:
    """Send as many requests at once as there are `prompts`, each to the least busy verifier: to one of its own while there are some."""

    def ask(prompt: Sequence[int]) -> tuple[str, int]:
        done = way.client.generate(prompt, max_tokens=new, ignore_eos=True, drafter=drafter)
        return done.done.verifier, len(done.tokens)

    before, began = read(way.metrics), time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        done = list(pool.map(ask, prompts))
    seconds = time.perf_counter() - began
    wait_parked(way)  # what ranks count comes a moment behind what they send
    made = read(way.metrics) - before
    into.turns_per_s.append((made.steps + made.idle) / way.ranks / seconds)
    into.tokens_per_s.append(sum(tokens for _, tokens in done) / seconds)
    into.counters += made
    into.busy.append(len({verifier for verifier, _ in done}))


def wait_parked(way: Way) -> None:
    """Return once the group says that it is parked; at once if there is none. Raises DeadlineExceeded."""
    deadline = time.monotonic() + PARK_S
    while not is_parked(members := way.client.cluster(timeout_s=PARK_S).members):
        if time.monotonic() > deadline:
            said = "; ".join(
                f"{each.member_id} has {each.load.sessions} sessions and says {each.wave}" for each in members
            )
            raise DeadlineExceeded(f"{way.name} has not parked {PARK_S:g} s after its last request: {said}")
        time.sleep(0.02)


@dataclass
class Wakes:
    """Milliseconds from a request of one token to the one that answers it: its first step, and nothing else, lies between."""

    asleep_ms: list[float] = field(default_factory=list[float])
    """The verifiers had nothing to do: a group was parked."""
    awake_ms: list[float] = field(default_factory=list[float])
    """The request came right behind another one: a group was in a wave."""
    ranks_ms: list[float] = field(default_factory=list[float])
    """`asleep_ms` as a rank of a group says it: from when it had work while it was parked to the forward. Not if the wave came first."""

    @property
    def by_state(self) -> dict[str, list[float]]:
        """Under the name of the state in which the verifiers were."""
        told = {
            "nothing to do (a group: parked)": self.asleep_ms,
            "just done with another (a group: in a wave)": self.awake_ms,
        }
        return told | ({"parked, of that from work on the rank to its forward": self.ranks_ms} if self.ranks_ms else {})


def wake(way: Way, chance: random.Random, into: Wakes) -> None:
    """Two requests one behind the other, to verifiers that have nothing to do."""
    wait_parked(way)
    time.sleep(chance.uniform(0.05, 0.25))
    before = read(way.metrics)
    time.sleep(0.05)
    into.asleep_ms.append(_first_token_ms(way.client, chance))
    into.awake_ms.append(_first_token_ms(way.client, chance))
    wait_parked(way)
    made = read(way.metrics) - before
    if made.wakes:
        into.ranks_ms.append(made.wake_s / made.wakes * 1e3)


def _first_token_ms(client: Client, chance: random.Random) -> float:
    began = time.perf_counter()
    client.generate([chance.randrange(1, 1000)], max_tokens=1, ignore_eos=True, drafter="none")
    return (time.perf_counter() - began) * 1e3


@dataclass
class Parked:
    """What one verifier uses that has nothing to do."""

    cpu_ms_per_s: list[float] = field(default_factory=list[float])
    switches_per_s: list[float] = field(default_factory=list[float])
    """Times at which one of its threads woke up."""


def rest(ways: Sequence[Way], seconds: float, into: Sequence[Parked]) -> None:
    """Have all `ways` do nothing for as long, at the same time."""
    for way in ways:
        wait_parked(way)
    time.sleep(0.5)
    before, began = [Processor.of(way.pids) for way in ways], time.perf_counter()
    time.sleep(seconds)
    taken = time.perf_counter() - began
    for way, first, parked in zip(ways, before, into, strict=True):
        last = Processor.of(way.pids)
        parked.cpu_ms_per_s.append((last.seconds - first.seconds) * 1e3 / taken / way.ranks)
        parked.switches_per_s.append((last.switches - first.switches) / taken / way.ranks)
