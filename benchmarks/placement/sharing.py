"""Coordinators that do not know one another and share verifiers, in virtual time, and one that knows all.

They are the product's registries, indices, rules of placement and reports of members; sessions come and end at random (Poisson,
exponential). Nothing in it depends on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count, islice
from random import Random
from typing import Final, NamedTuple

from benchmarks.lab.clock import VirtualClock
from benchmarks.placement.toys import PLACES, TAKEN, TARGET, TEXT, drafter, verifier
from specsplit.membership import Register
from specsplit.rpc.standing import Sources, Standing
from specsplit.values import Load
from specsplit_coordinator.cluster.drafter_placement import DrafterPlacement
from specsplit_coordinator.cluster.drafter_scorer import DrafterScorer
from specsplit_coordinator.cluster.lease import Lease
from specsplit_coordinator.cluster.verifier_placement import VerifierPlacement
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry

SESSION_S: Final = 8.0
"""What a session takes in the mean."""
INTERVAL_S: Final = 0.5
"""Between two heartbeats of a verifier to one coordinator."""
SLOWER: Final = 4
"""Drafters report so many times less often: nothing that is asked here depends on it, and it takes most of the time."""
TICKS: Final = 50
"""Moments in an interval at which members report."""
SAMPLE_S: Final = 0.1


@dataclass(frozen=True)
class Scale:
    """How much is placed on how many."""

    verifiers: int = 1_000
    drafters: int = 10_000
    sessions: int = 100_000


@dataclass(eq=False)
class Member:
    """A member, what it says, and as what each coordinator knows it."""

    standing: Standing
    sessions: int = 0
    known: list[MemberState] = field(default_factory=list[MemberState])

    @property
    def load(self) -> Load:
        return Load(self.sessions, max(0, self.sessions - self.standing.register.max_sessions))


class Site:
    """One coordinator, as far as it places."""

    def __init__(self, name: str, clock: VirtualClock, chance: Random) -> None:
        self.name = name
        self.registry = Registry(TARGET, clock, 1e9)
        self._verifiers = VerifierPlacement(self.registry, chance)
        self._drafters = DrafterPlacement(DrafterScorer(self.registry, clock), chance)

    def place(self) -> Lease | None:
        """Choose a verifier and a drafter for a session, and count it on both."""
        chosen = self._verifiers.choose(TEXT)
        if chosen is None:
            return None
        lease = Lease(chosen, TEXT, lambda _: None)
        lease.take_drafter(self._drafters.choose(self.registry, chosen, None, TARGET, sampled=False))
        return lease


class Ending(NamedTuple):
    """A session that ends."""

    at: float
    number: int
    lease: Lease


class Sharing:
    """Coordinators that share members, in virtual time."""

    def __init__(self, scale: Scale, shares: Sequence[float], *, homes: bool = True, seed: int = 1) -> None:
        """`shares`: of the requests, those that each coordinator gets. `homes`: members tell which coordinator is their home."""
        self._scale, self._shares, self._homes = scale, shares, homes
        self._chance = Random(seed)
        self._clock = VirtualClock()
        self._sites = [Site(f"coordinator-{number}:1", self._clock, self._chance) for number in range(len(shares))]
        self._verifiers = [self._join(verifier(number)) for number in range(scale.verifiers)]
        self._drafters = [self._join(drafter(number)) for number in range(scale.drafters)]
        self._members = {each: member for member in (*self._verifiers, *self._drafters) for each in member.known}
        self._endings: list[Ending] = []
        self._numbers = count()
        self.placed = self.at_home = self.beyond = 0

    def run(self) -> Iterator[list[int]]:
        """Place all sessions; yield how many each verifier has, every `SAMPLE_S`."""
        rate = self._scale.verifiers * PLACES * TAKEN / SESSION_S
        self._fill(round(rate * SESSION_S))
        arrival, report, sample = 0.0, 0.0, 0.0
        reporting = self._turns()
        while self.placed < self._scale.sessions:
            now = min(arrival, report, sample, self._endings[0].at)
            self._clock.turn_to(now)
            if now == report:
                self._report(next(reporting))
                report += INTERVAL_S / TICKS
            elif now == arrival:
                self._arrive(now)
                arrival += self._chance.expovariate(rate)
            elif now == sample:
                yield [each.sessions for each in self._verifiers]
                sample += SAMPLE_S
            else:
                self._end(heappop(self._endings).lease)

    def _join(self, who: Register) -> Member:
        member = Member(Standing(who, Sources(lambda: member.load, None, None, tuple), None, self._clock))
        member.standing.joined = [site.name for site in self._sites]
        member.known = [site.registry.register(who) for site in self._sites]
        return member

    def _fill(self, sessions: int) -> None:
        """Begin with sessions spread evenly, each from any coordinator."""
        for number in range(sessions):
            site = self._chance.choices(range(len(self._sites)), self._shares)[0]
            lease = Lease(self._verifiers[number % len(self._verifiers)].known[site], TEXT, lambda _: None)
            lease.take_drafter(self._drafters[number % len(self._drafters)].known[site])
            self._begin(lease, 0.0)
        for told in islice(self._turns(), SLOWER * TICKS):
            self._report(told)

    def _turns(self) -> Iterator[Sequence[tuple[Member, int]]]:
        """Yield who reports to which coordinator, one moment after the other."""
        verifiers, drafters = self._spread(self._verifiers, TICKS), self._spread(self._drafters, SLOWER * TICKS)
        for moment in count():
            yield (*verifiers[moment % len(verifiers)], *drafters[moment % len(drafters)])

    def _spread(self, members: Sequence[Member], moments: int) -> Sequence[Sequence[tuple[Member, int]]]:
        """Pairs of member and coordinator, spread over so many moments in any order."""
        pairs = [(each, site) for each in members for site in range(len(self._sites))]
        Random(0).shuffle(pairs)
        return [pairs[moment::moments] for moment in range(moments)]

    def _report(self, pairs: Sequence[tuple[Member, int]]) -> None:
        for member, number in pairs:
            site = self._sites[number]
            report = member.standing.heartbeat((), INTERVAL_S, site.name)
            site.registry.on_heartbeat(member.known[number], report if self._homes else replace(report, home=False))

    def _arrive(self, now: float) -> None:
        site = self._chance.choices(self._sites, self._shares)[0]
        lease = site.place()
        self.placed += 1
        if lease is not None:
            self.at_home += lease.verifier.at_home
            self.beyond += self._members[lease.verifier].sessions >= PLACES
            self._begin(lease, now)

    def _begin(self, lease: Lease, now: float) -> None:
        for each in filter(None, (lease.verifier, lease.drafter)):
            self._members[each].sessions += 1
        ends = now + self._chance.expovariate(1 / SESSION_S)
        heappush(self._endings, Ending(ends, next(self._numbers), lease))

    def _end(self, lease: Lease) -> None:
        for each in filter(None, (lease.verifier, lease.drafter)):
            self._members[each].sessions -= 1
        lease.release()


def all_knowing(scale: Scale, seed: int = 1) -> Iterator[list[int]]:
    """Sessions of each verifier, every `SAMPLE_S`, where each goes to the one that has the fewest at that moment."""
    chance, sessions = Random(seed), [round(PLACES * TAKEN)] * scale.verifiers
    rate = scale.verifiers * PLACES * TAKEN / SESSION_S
    fewest = [(number, verifier) for verifier, number in enumerate(sessions)]
    ends = [(chance.expovariate(1 / SESSION_S), verifier) for verifier, n in enumerate(sessions) for _ in range(n)]
    ends.sort()
    placed, arrival, sample = 0, 0.0, 0.0
    while placed < scale.sessions:
        now = min(arrival, sample, ends[0][0])
        if now == sample:
            yield [*sessions]
            sample += SAMPLE_S
        elif now == arrival:
            while fewest[0][0] != sessions[fewest[0][1]]:
                heappop(fewest)
            chosen = fewest[0][1]
            sessions[chosen] += 1
            heappush(fewest, (sessions[chosen], chosen))
            heappush(ends, (now + chance.expovariate(1 / SESSION_S), chosen))
            placed, arrival = placed + 1, arrival + chance.expovariate(rate)
        else:
            chosen = heappop(ends)[1]
            sessions[chosen] -= 1
            heappush(fewest, (sessions[chosen], chosen))
