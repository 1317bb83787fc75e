"""The `trees` benchmark: what the speculation itself costs, on either side, for small trees and for large ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import numpy as np
from matplotlib.figure import Figure

from benchmarks.context import Context
from benchmarks.plots import lines
from benchmarks.report import Row
from benchmarks.spread import spread
from specsplit.speculation import Grow, Mirror, Original
from specsplit.values import Plan
from specsplit_drafter.drafts.calibration import DistanceCalibration
from specsplit_drafter.drafts.proposer import Children
from specsplit_drafter.growth.cost_benefit import CostBenefit
from specsplit_drafter.growth.growth import Growth, choose

SIZES = (256, 1024, 8192)
BRANCHING = 16
PEAK = 2.5
"""Standard deviation of a node's logits: two or three likely children, and a tail."""
DEPTH = 6
AMPLE = 1 << 14
"""Nodes and tokens, more than any measurement here needs."""
AIMS_MS = {
    "grow of 1000 nodes": 0.3,
    "best 16, topk 4": 0.1,
    "reroot, all survive": 0.3,
    "expansion of 64 x 16": 0.5,
}
COLUMNS = {"operation": "operation", "nodes": "live nodes", "median_us": "median, us", "low_us": "first quartile, us",
           "high_us": "third quartile, us", "aim_us": "aim, us"}  # fmt: skip


def children_of(count: int, children: int, rng: np.random.Generator) -> Children:
    """Candidate children of so many nodes."""
    weights = np.sort(np.exp(rng.normal(scale=PEAK, size=(count, children))), axis=1)[:, ::-1]
    raw = np.log(weights / weights.sum(axis=1, keepdims=True) / 1.02)
    return Children(np.arange(children)[None].repeat(count, axis=0), raw)


def growth() -> Growth:
    """A session of a drafter that has grown nothing yet, and whose candidates all become nodes."""
    return Growth(
        Original(1, 0, 0, AMPLE), Plan(num_steps=DEPTH), 64, CostBenefit(price_s=1e-15), DistanceCalibration(), AMPLE
    )


def expand(session: Growth, width: int, found: Children) -> list[Grow]:
    """All that the drafter does for one expansion but the proposer's part."""
    ((_, slots),) = choose([session], width, AMPLE)
    if len(slots) < len(found.tokens):
        found = Children(found.tokens[: len(slots)], found.log_probabilities[: len(slots)])
    session.add_children(found)
    return session.flush(math.inf)  # all of it, however soon behind the last


def grows(nodes: int) -> Grow:
    """What a drafter tells of its first `nodes` nodes, as one grow."""
    session, rng, told = growth(), np.random.default_rng(0), list[Grow]()
    while len(session.original.tree) < nodes:
        told += expand(session, 64, children_of(64, BRANCHING, rng))
    return part(Grow.merge(told), slice(nodes))


def part(grow: Grow, of: slice) -> Grow:
    """Some of its nodes."""
    return Grow(0, tuple(grow.ids[of]), tuple(grow.parents[of]), tuple(grow.tokens[of]), tuple(grow.edges[of]))


def below(grow: Grow, parent: int) -> Grow:
    """The tree of `grow` below a new node, `parent`."""
    ids = [parent, *(node_id + parent for node_id in grow.ids)]
    return Grow(0, ids, [0, *(above + parent for above in grow.parents)], [BRANCHING, *grow.tokens], [0.0, *grow.edges])


def mirrored(grow: Grow) -> Mirror:
    """A session of a verifier that has been told this, and has had room for more."""
    mirror = Mirror(1, 0, 0, AMPLE, BRANCHING + 1)
    mirror.tree.reserve(AMPLE)
    mirror.grow(grow)
    return mirror


def timed(call: Callable[[], object]) -> float:
    """Seconds that the call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def verifier_operations(nodes: int, whole: Grow) -> Iterator[tuple[str, Callable[[], float]]]:
    """(name, one measurement) of what a verifier does."""

    def last(count: int) -> float:
        mirror, rest = mirrored(part(whole, slice(nodes - count))), part(whole, slice(nodes - count, nodes))
        return timed(lambda: mirror.grow(rest))

    def best(count: int, topk: int) -> float:
        mirror.mark_busy()
        mirror.grow(Grow(0))  # forgets the last preview
        return timed(lambda: mirror.preview(count, topk, DEPTH))

    def reroot(bonus: int) -> float:
        mirror = mirrored(below(whole, 1))
        draft = mirror.take(16, 4, DEPTH)
        return timed(lambda: mirror.commit(draft, [0], bonus))

    mirror = mirrored(whole)
    for count in (8, 32, 1000):
        if count < nodes:
            yield f"grow of {count} nodes", lambda count=count: last(count)
    for count, topk in ((16, 4), (16, 1), (64, 8)):
        yield f"best {count}, topk {topk}", lambda count=count, topk=topk: best(count, topk)
    yield "reroot, all survive", lambda: reroot(BRANCHING)
    yield "reroot, a miss", lambda: reroot(0)


def drafter_operations(nodes: int) -> Iterator[tuple[str, Callable[[], float]]]:
    """(name, one measurement) of what a drafter does beside its model."""
    rng = np.random.default_rng(0)
    widest = max(0, nodes - 64 * BRANCHING)

    def expansion(width: int, children: int) -> float:
        session = growth()
        session.original.tree.reserve(AMPLE)
        while len(session.original.tree) < widest:
            expand(session, 64, children_of(64, BRANCHING, rng))
        if not widest:
            expand(session, 1, children_of(1, 64, rng))  # so that there are 64 nodes to expand
        found = children_of(width, children, rng)
        return timed(lambda: expand(session, width, found))

    for width, children in ((4, 8), (64, BRANCHING)):
        yield f"expansion of {width} x {children}", lambda w=width, c=children: expansion(w, c)


def run(context: Context) -> None:
    """Measure, print, write."""
    repeats, rows = 10 if context.quick else 60, list[Row]()
    with context.progress("trees", len(SIZES)) as advance:
        for nodes in SIZES:
            operations = [*verifier_operations(nodes, grows(nodes)), *drafter_operations(nodes)]
            for name, measure in operations:
                measure()
                found = spread([measure() * 1e6 for _ in range(repeats)])
                aim = AIMS_MS.get(name, 0.0) * 1e3 or None
                rows.append({"operation": name, "nodes": nodes, "median_us": found.median, "low_us": found.low,
                             "high_us": found.high, "aim_us": aim if aim else ""})  # fmt: skip
            advance(f"{nodes} nodes")

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        lines(axes, rows, lambda row: str(row["operation"]), "nodes", "median_us")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("live nodes")
        axes.set_ylabel("median, us")
        axes.legend(fontsize=6)

    late = [row for row in rows if row["aim_us"] and row["median_us"] > row["aim_us"]]  # pyright: ignore[reportOperatorIssue]
    notes = [
        f"Aims, for one core with nothing else on it: {'met' if not late else f'missed in {len(late)} rows'}.",
        "The last nodes of a tree are grown, the best of a whole tree taken, and a whole tree kept or lost. An expansion is all that the "
        "drafter does for one but the proposer's part: choose, candidates, push and the grow to send.",
    ]
    settings: dict[str, object] = {"children of a node": BRANCHING, "depth": DEPTH, "repeats": repeats}
    context.finish("trees", "The speculation itself", COLUMNS, rows, settings, notes, draw)
