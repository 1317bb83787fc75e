"""The `drafters` benchmark: how many drafted tokens the target accepts, by kind of drafter, shape of tree and temperature.

Three real processes. The drafter is given all the time it wants (the serial loop, no wait budget worth mentioning), so that the
figures are of what it proposes and not of how fast this machine is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.context import Context
from benchmarks.plots import bars
from benchmarks.prompts import held_out
from benchmarks.report import Row
from benchmarks.spread import spread
from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.client import Client, Delta, Done
from specsplit.client.options import Options
from specsplit.values import DrafterKind, PlanChanges

PROMPT, NEW, PROMPTS = 64, 96, 24
TREES = {"1x4": (1, 4, 4), "4x4": (4, 4, 16), "8x6": (8, 6, 60)}
"""Name -> topk, num_steps, nodes."""
TEMPERATURES = (0.0, 1.0)
KINDS = (
    DrafterKind.NGRAM,
    DrafterKind.STANDALONE,
    DrafterKind.EAGLE,
    DrafterKind.EAGLE3,
    DrafterKind.MULTI_LAYER_EAGLE,
    DrafterKind.DFLASH,
)
WAIT_BUDGET_US = 5_000_000
COLUMNS = {
    "drafter": "drafter", "temperature": "T", **{tree: f"{tree}, {nodes} nodes" for tree, (_, _, nodes) in TREES.items()},
    "agreement": "first choice is the target's pick",
}  # fmt: skip


@dataclass
class Measured:
    """What one drafter gave with one tree at one temperature, a figure per prompt."""

    lengths: list[float] = field(default_factory=list)
    """The accept_length of every prompt."""
    firsts: list[float] = field(default_factory=list)
    """Share of the steps in which at least one draft was accepted; with topk 1 that is how often the first choice was right."""


def plan_of(tree: str) -> PlanChanges:
    """The plan that verifies a tree of TREES and gives the drafter all the time it wants to grow it."""
    topk, steps, nodes = TREES[tree]
    return PlanChanges(steps, topk, nodes + 1, WAIT_BUDGET_US, draft_ahead=False)


def _write(
    client: Client, prompt: list[int], drafter: str, tree: str, temperature: float, seed: int, new: int
) -> tuple[float, float]:
    """(accept_length, share of the steps with an accepted draft)."""
    options: Options = {"max_tokens": new, "ignore_eos": True, "temperature": temperature, "seed": seed}
    options |= {"drafter": drafter, "plan": plan_of(tree)}
    events = list(client.stream(prompt, **options))
    done = events[-1]
    assert isinstance(done, Done)
    right = sum(event.num_correct_drafts > 0 for event in events if isinstance(event, Delta))
    return done.speculation.accept_length, right / done.speculation.steps


def _row(kind: DrafterKind, temperature: float, cells: dict[str, Measured]) -> Row:
    row: Row = {"drafter": kind.value, "temperature": temperature}
    for tree, measured in cells.items():
        length = spread(measured.lengths)
        mean = sum(measured.lengths) / len(measured.lengths)
        row |= {
            tree: f"{mean:.2f} ({length.quartiles('.2f')})",
            f"{tree}_mean": mean,
            f"{tree}_spread": length,
        }
    firsts = cells["1x4"].firsts
    return row | {"agreement": sum(firsts) / len(firsts)}


def run(context: Context) -> None:
    """Measure, print, write."""
    new, count = (32, 2) if context.quick else (NEW, PROMPTS)
    prompts = held_out(context.target, PROMPT, count).tolist()
    models = drafts_beside(context.target)
    kinds = [kind for kind in KINDS if kind in models or not kind.needs_model]
    rows: list[Row] = []
    cells_in_all = len(kinds) * len(TEMPERATURES) * len(TREES)
    started = LocalCluster(context.target, models, drafters=kinds)
    with started as cluster, cluster.client() as client, context.progress("drafters", cells_in_all) as advance:
        for kind in kinds:
            for temperature in TEMPERATURES:
                cells = {tree: Measured() for tree in TREES}
                for tree, measured in cells.items():
                    for seed, prompt in enumerate(prompts):
                        length, first = _write(client, prompt, kind.value, tree, temperature, seed, new)
                        measured.lengths.append(length)
                        measured.firsts.append(first)
                    advance(f"{kind.value}, T={temperature:g}, {tree}")
                rows.append(_row(kind, temperature, cells))

    series = {f"{tree}_mean": tree for tree in TREES}
    context.finish(
        "drafters", "Accepted tokens per step, by drafter", COLUMNS, rows,
        {"prompts": count, "prompt": PROMPT, "new": new, "draft_ahead": False, "wait_budget_us": WAIT_BUDGET_US},
        [*_aims(rows),
         "Mean accept_length over prompts of held-out files, bonus included, quartiles over prompts in brackets. "
         "A tree of topk x num_steps; the nodes are the best-scored ones, the root not counted.",
         "Temperature 1 with shared noise and a seed per prompt. The ngram drafter uses no noise.",
         "multi_layer_eagle has as many layers as it can look ahead: its trees are no deeper than that.",
         "The last column is of the 1x4 tree: in how many of the steps the likeliest child of the root was what the target picked."],
        partial(bars, rows=rows, name=lambda row: str(row["drafter"]), series=series, ylabel="mean accept_length, bonus included"),
    )  # fmt: skip


def _aims(rows: Sequence[Row]) -> list[str]:
    found = {row["temperature"]: row["4x4_mean"] for row in rows if row["drafter"] == DrafterKind.EAGLE3.value}
    if len(found) < len(TEMPERATURES):
        return []
    greedy, sampled = (float(str(found[temperature])) for temperature in TEMPERATURES)
    met = "met" if greedy > 3.0 else "missed"
    kept = "met" if sampled >= 0.9 * greedy else "missed"
    return [
        f"Aim: eagle3 at 16 nodes above 3.0 at temperature 0: {greedy:.2f}, {met}.",
        f"Aim: no more than 10 % lower at temperature 1: {sampled:.2f}, {1 - sampled / greedy:.0%} lower, {kept}.",
    ]
