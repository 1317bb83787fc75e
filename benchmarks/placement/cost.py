"""What a placement costs a coordinator as there are more members, on the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from benchmarks.context import Context
from benchmarks.placement.toys import PLACES, TAKEN, TARGET, TEXT, drafter, verifier
from benchmarks.plots import panels
from benchmarks.report import Row
from specsplit.clock import ManualClock
from specsplit.membership import Heartbeat
from specsplit.values import Adapter
from specsplit_coordinator.cluster.drafter_placement import DrafterPlacement, choose_drafter
from specsplit_coordinator.cluster.drafter_scorer import DrafterScorer
from specsplit_coordinator.cluster.lease import Lease
from specsplit_coordinator.cluster.placement import choose_verifier, free_places
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.cluster.verifier_placement import VerifierPlacement
from specsplit_coordinator.members.registry import Registry

SIZES: Final = (10, 100, 1_000, 10_000)
PLACED: Final = 2_000
"""Placements that are timed with each size."""
ADAPTER: Final = Adapter("polite", "0a")
SHARE: Final = 8
"""One of so many verifiers has the adapter."""
COSTS: Final = {
    "members": "verifiers, and as many drafters",
    "us": "a placement, us",
    "all_us": "looking at all of them, us",
    "adapter_us": "with an adapter that some have, us",
    "full_us": "where all of these are full, us",
}


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
    costs = [timed(size, 50 if context.quick else PLACED) for size in (SIZES[:2] if context.quick else SIZES)]
    context.finish(
        "placement_cost", "What a placement costs the coordinator", COSTS, costs,
        {"places": PLACES, "taken": TAKEN, "placements": PLACED},
        ["Of one coordinator, the median: to see that there is room and what is served, to choose a verifier and a drafter, and to "
         "count the session on both.",
         "Looking at all of them: the same choice among all verifiers and all drafters, as it was before; fewer placements.",
         f"One of {SHARE} verifiers has the adapter; where these are full, it is found that the session has to wait."],
        partial(panels, rows=costs, name="members", keys={"us": COSTS["us"], "all_us": COSTS["all_us"]}),
    )  # fmt: skip
