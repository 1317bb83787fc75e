"""The `placement` benchmark: how evenly coordinators that do not know one another load the verifiers that they share, and what a placement
costs as there are more members.

The first part is in virtual time: the product's registries, indices, rules of placement and reports of members, and sessions that come and
end at random (Poisson, exponential). Nothing in it depends on the machine. The second is on the clock.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count, islice
from random import Random
from typing import Final, NamedTuple

from benchmarks.context import Context
from benchmarks.lab.clock import VirtualClock
from benchmarks.plots import panels
from benchmarks.report import Row
from specsplit.clock import ManualClock
from specsplit.membership import Heartbeat, Register
from specsplit.rpc.standing import Sources, Standing
from specsplit.values import Adapter, DrafterInfo, DrafterKind, Load, ModelInfo, Vocabulary
from specsplit_coordinator.cluster.drafter_placement import DrafterPlacement, choose_drafter
from specsplit_coordinator.cluster.drafter_scorer import DrafterScorer
from specsplit_coordinator.cluster.lease import Lease
from specsplit_coordinator.cluster.placement import choose_verifier, free_places
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.cluster.verifier_placement import VerifierPlacement
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry

PLACES: Final = 32
TAKEN: Final = 0.6
"""Share of all places that are taken."""
SESSION_S: Final = 8.0
"""What a session takes in the mean."""
INTERVAL_S: Final = 0.5
"""Between two heartbeats of a verifier to one coordinator."""
SLOWER: Final = 4
"""Drafters report so many times less often: nothing that is asked here depends on it, and it takes most of the time."""
TICKS: Final = 50
"""Moments in an interval at which members report."""
SAMPLE_S: Final = 0.1
WARM: Final = 0.2
"""The share of the sessions before which loads do not count."""
AIM: Final = 1.1
"""Times what one that knows all has on its worst verifier."""
SIZES: Final = (10, 100, 1_000, 10_000)
PLACED: Final = 2_000
"""Placements that are timed with each size."""
TARGET: Final = Vocabulary(50, "aa")
TEXT: Final = PlacementRequest(range(64), 256)
ADAPTER: Final = Adapter("polite", "0a")
SHARE: Final = 8
"""One of so many verifiers has the adapter."""
COLUMNS: Final = {
    "who": "coordinators",
    "worst": "sessions on the worst verifier, of the mean",
    "p99": "on the 99th of 100",
    "more": "worst, of the all-knowing one's",
    "highest": "the worst at any moment",
    "at_home": "placed at home",
    "beyond": "placed beyond max_sessions",
}
COSTS: Final = {
    "members": "verifiers, and as many drafters",
    "us": "a placement, us",
    "all_us": "looking at all of them, us",
    "adapter_us": "with an adapter that some have, us",
    "full_us": "where all of these are full, us",
}


@dataclass(frozen=True)
class Scale:
    """How much is placed on how many."""

    verifiers: int = 1_000
    drafters: int = 10_000
    sessions: int = 100_000


QUICK: Final = Scale(20, 40, 2_000)


def verifier(number: int, adapters: tuple[Adapter, ...] = ()) -> Register:
    return Register(f"verifier-{number}", "a:1", ModelInfo("toy", TARGET, 4096, adapters=adapters), PLACES)


def drafter(number: int) -> Register:
    return Register(f"drafter-{number}", "a:1", DrafterInfo(DrafterKind.NGRAM, "", None, 4096), 4)


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


def loads(samples: Iterator[list[int]]) -> Row:
    """What the worst verifiers have, of the mean: over all samples but the first."""
    worst, p99 = list[float](), list[float]()
    for sessions in samples:
        mean, ordered = statistics.fmean(sessions), sorted(sessions)
        worst.append(ordered[-1] / mean)
        p99.append(ordered[int(0.99 * len(ordered))] / mean)
    first = round(WARM * len(worst))
    return {
        "worst": statistics.fmean(worst[first:]),
        "p99": statistics.fmean(p99[first:]),
        "highest": max(worst[first:]),
    }


class Case(NamedTuple):
    """One row: some coordinators."""

    who: str
    shares: tuple[float, ...]
    homes: bool = True


CASES: Final = (
    *(Case(str(number), (1.0,) * number) for number in (1, 2, 4, 8)),
    Case("8, one has half of the requests", (7.0, *(1.0,) * 7)),
    Case("8, members name no home", (1.0,) * 8, homes=False),
)


def _measured(scale: Scale, case: Case) -> Row:
    sharing = Sharing(scale, case.shares, homes=case.homes)
    row = loads(sharing.run())
    at_home = f"{sharing.at_home / sharing.placed:.0%}" if case.homes else ""
    return {"who": case.who, "at_home": at_home, "beyond": sharing.beyond} | row


def _rows(context: Context, scale: Scale) -> list[Row]:
    """The one that knows all, then the cases; two of them are computed at once, which changes no figure."""
    rows: list[Row] = [{"who": "one that knows all", "at_home": "", "beyond": 0} | loads(all_knowing(scale))]
    spawn = multiprocessing.get_context("spawn")
    with context.progress("placement", len(CASES)) as advance, ProcessPoolExecutor(2, mp_context=spawn) as pool:
        for row in pool.map(partial(_measured, scale), CASES):
            rows.append(row)
            advance(str(row["who"]))
    for row in rows:
        row["more"] = float(str(row["worst"])) / float(str(rows[0]["worst"]))
    return rows


def timed(size: int, placed: int = PLACED) -> Row:
    """What a placement takes with so many verifiers and drafters, and what it takes to look at all of them."""
    registry, chance = _cluster(size), Random(2)
    scorer = DrafterScorer(registry, registry.clock)
    verifiers, drafters = VerifierPlacement(registry, chance), DrafterPlacement(scorer, chance)
    held = [_begun(registry, number) for number in range(round(TAKEN * PLACES * size))]

    def drawn(wanted: PlacementRequest = TEXT) -> Lease:
        free_places(registry)
        registry.model("" if wanted.adapter is None else wanted.adapter.name)
        chosen = verifiers.choose(wanted)
        assert chosen is not None
        lease = Lease(chosen, wanted, lambda _: None)
        lease.take_drafter(drafters.choose(registry, chosen, None, TARGET, sampled=False))
        return lease

    def all_of_them() -> Lease:
        chosen = choose_verifier(registry.verifiers, TEXT)
        assert chosen is not None
        score = partial(scorer.score, chosen, more=1, sampled=False)
        lease = Lease(chosen, TEXT, lambda _: None)
        lease.take_drafter(choose_drafter(registry.drafters, None, TARGET, (), score))
        return lease

    few, wanted = max(10, min(placed, 20_000 // size)), PlacementRequest(range(64), 256, adapter=ADAPTER)
    row: Row = {
        "members": size,
        "us": _microseconds(drawn, held, placed, chance),
        "all_us": _microseconds(all_of_them, held, few, chance),
        "adapter_us": _microseconds(partial(drawn, wanted), [drawn(wanted)], placed, chance),
    }
    while (chosen := verifiers.choose(wanted)) is not None:
        Lease(chosen, wanted, lambda _: None)
    return row | {"full_us": _median_us(partial(verifiers.choose, wanted), placed)}


def _cluster(size: int) -> Registry:
    registry = Registry(TARGET, ManualClock(), 1e9)
    for number in range(size):
        who = verifier(number, () if number % SHARE else (ADAPTER,))
        registry.on_heartbeat(registry.register(who), Heartbeat(coordinators=1, home=True))
        registry.register(drafter(number))
    return registry


def _begun(registry: Registry, number: int) -> Lease:
    lease = Lease(registry.verifiers[number % len(registry.verifiers)], TEXT, lambda _: None)
    lease.take_drafter(registry.drafters[number % len(registry.drafters)])
    return lease


def _microseconds(place: Callable[[], Lease], held: list[Lease], times: int, chance: Random) -> float:
    """The median time of a placement; a session ends before each, so that as many places stay taken."""
    taken = list[float]()
    for _ in range(times):
        at = chance.randrange(len(held))
        held[at].release()
        begun = time.perf_counter()
        held[at] = place()
        taken.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(taken)


def _median_us(call: Callable[[], object], times: int) -> float:
    taken = list[float]()
    for _ in range(times):
        begun = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(taken)


def run(context: Context) -> None:
    """Measure, print, write."""
    scale = QUICK if context.quick else Scale()
    rows = _rows(context, scale)
    costs = [timed(size, 50 if context.quick else PLACED) for size in (SIZES[:2] if context.quick else SIZES)]
    eight = float(str(rows[4]["more"]))

    settings: dict[str, object] = {
        "verifiers": scale.verifiers, "drafters": scale.drafters, "sessions": scale.sessions, "places": PLACES,
        "taken": TAKEN, "session_s": SESSION_S, "heartbeat_ms": INTERVAL_S * 1e3,
    }  # fmt: skip
    context.finish(
        "placement", "How evenly coordinators load the verifiers that they share", COLUMNS, rows, settings,
        [f"The aim: the worst verifier of 8 coordinators has at most {AIM - 1:.0%} more than that of one that knows all. "
         f"It has {eight - 1:.1%} more: {'met' if eight <= AIM else 'missed'}.",
         "One that knows all puts every session on the verifier that has the fewest at that moment, and hears of every end at once.",
         f"In virtual time; a figure is the mean over samples every {SAMPLE_S:g} s, without those of the first {WARM:.0%} of the time.",
         f"A drafter reports every {SLOWER * INTERVAL_S:g} s here.",
         "Every coordinator gets as many requests as any other, at random, but in the row that says so."],
        partial(panels, rows=rows, name="who", keys={"worst": COLUMNS["worst"]}),
    )  # fmt: skip
    context.finish(
        "placement_cost", "What a placement costs the coordinator", COSTS, costs,
        {"places": PLACES, "taken": TAKEN, "placements": PLACED},
        ["Of one coordinator, the median: to see that there is room and what is served, to choose a verifier and a drafter, and to "
         "count the session on both.",
         "Looking at all of them: the same choice among all verifiers and all drafters, as it was before; fewer placements.",
         f"One of {SHARE} verifiers has the adapter; where these are full, it is found that the session has to wait."],
        partial(panels, rows=costs, name="members", keys={"us": COSTS["us"], "all_us": COSTS["all_us"]}),
    )  # fmt: skip
