"""The `acceptance` benchmark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.acceptance.schemes import RecursiveRejection, Scheme, SharedNoise, TargetOnly
from benchmarks.acceptance.shapes import Budget, best_shape
from benchmarks.acceptance.spots import PROMPT, Spot, Text, texts
from benchmarks.acceptance.treecache import TreeCache
from benchmarks.acceptance.trees import acceptance_by_rank, expected_length, grow_by_score, grow_to_shape
from benchmarks.context import Context
from benchmarks.plots import bars
from benchmarks.prompts import held_out
from benchmarks.report import Row
from scripts.pocket.draft import load

BUDGETS = (Budget(1, 4, 4), Budget(4, 4, 16), Budget(8, 6, 60))
TEMPERATURES = (0.0, 0.5, 1.0)
SCHEMES: tuple[Scheme, ...] = (TargetOnly(), RecursiveRejection(), SharedNoise())
FIXED, FOLLOWING = "fixed", "confident"
RANKS = 8

Lengths = dict[tuple[str, str, Budget], list[float]]


class Pair:
    """Target and draft, reading the same texts."""

    def __init__(self, target: Path, draft: Path) -> None:
        self.target = TreeCache(target)
        self.draft = TreeCache(draft)

    def visit(self, text: Text, at: Callable[[Spot], None]) -> None:
        """Call `at` on every spot of `text`, with both caches ready."""
        self.target.read(text.tokens)
        self.draft.read(text.tokens)
        for spot in text.spots:
            at(spot)


def _ranks(pair: Pair, calibration: list[Text]) -> dict[str, np.ndarray]:
    """Acceptance by rank of each scheme, measured on texts that are not measured again."""
    sums = {scheme.name: [] for scheme in SCHEMES}

    def at(spot: Spot) -> None:
        for scheme in SCHEMES:
            sums[scheme.name].append(acceptance_by_rank(pair.target, pair.draft, scheme, spot, RANKS).numpy())

    for text in calibration:
        pair.visit(text, at)
    return {name: np.mean(rows, axis=0) for name, rows in sums.items()}


def _lengths(
    pair: Pair, measured: list[Text], by_rank: dict[str, np.ndarray], advance: Callable[[str], None]
) -> Lengths:
    shapes = {(s.name, b): best_shape(by_rank[s.name].tolist(), b) for s in SCHEMES for b in BUDGETS}
    lengths: Lengths = defaultdict(list)

    def at(spot: Spot) -> None:
        for scheme in SCHEMES if spot.temperature > 0 else SCHEMES[:1]:
            for budget in BUDGETS:
                tree = grow_to_shape(pair.draft, scheme, spot, shapes[scheme.name, budget])
                lengths[scheme.name, FIXED, budget].append(expected_length(pair.target, scheme, spot, tree))
                if scheme.confident:
                    tree = grow_by_score(pair.draft, scheme, spot, budget)
                    lengths[scheme.name, FOLLOWING, budget].append(expected_length(pair.target, scheme, spot, tree))

    for text in measured:
        pair.visit(text, at)
        advance("")
    return lengths if measured[0].spots[0].temperature > 0 else _same_for_all(lengths)


def _same_for_all(greedy: Lengths) -> Lengths:
    """Without sampling the schemes do not differ, so one was measured for all."""
    return {(s.name, kind, b): v for s in SCHEMES for (_, kind, b), v in greedy.items() if s.confident or kind == FIXED}


def _row(temperature: float, budget: Budget, lengths: Lengths) -> Row:
    row: Row = {"temperature": temperature, "tree": str(budget)}
    for (scheme, kind, of), values in lengths.items():
        if of == budget:
            row[f"{scheme}, {kind}"] = f"{np.mean(values):.2f} ± {np.std(values) / np.sqrt(len(values)):.2f}"
            row[f"{scheme}, {kind}, mean"] = float(np.mean(values))
    return row


def run(context: Context) -> None:
    """Measure, print, write."""
    torch.set_num_threads(1 if context.quick else 2)
    measured_prompts, calibration_prompts = (6, 4) if context.quick else (40, 20)
    prompts = held_out(context.target, PROMPT, measured_prompts + calibration_prompts)
    # Every so many windows one is for calibration, so that both kinds come from all the files.
    aside = torch.zeros(len(prompts), dtype=torch.bool)
    aside[torch.linspace(0, len(prompts) - 1, calibration_prompts).long()] = True
    target, pair, rows, positions = load(context.target), Pair(context.target, context.draft), [], 0
    with context.progress("acceptance", len(TEMPERATURES) * measured_prompts) as advance:
        for temperature in TEMPERATURES:
            by_rank = _ranks(pair, list(texts(target, prompts[aside], temperature, seed=1)))
            measured = list(texts(target, prompts[~aside], temperature, seed=2))
            lengths = _lengths(pair, measured, by_rank, advance)
            rows += [_row(temperature, budget, lengths) for budget in BUDGETS]
            positions = sum(len(text.spots) for text in measured)
    series = [str(key).removesuffix(", mean") for key in rows[0] if str(key).endswith(", mean")]
    notes = [
        "Mean accept_length (bonus included) ± its standard error over positions. For target-only and recursive rejection the "
        "expectation over the target's draws is exact; with shared noise there is nothing left to draw.",
        "fixed: the best shape for the scheme's own acceptance by rank at that temperature, measured on other prompts; "
        "confident: best-first by the draft's scores, which recursive rejection may not do without bias.",
        "Budgets are children per node x depth, and nodes with the root left out. At temperature 0 the schemes are the same.",
    ]
    columns = {"tree": "tree", "temperature": "T"} | {name: name for name in series}
    settings: dict[str, object] = {
        "prompts": measured_prompts,
        "positions": positions,
        "text": "the target's own continuations of held-out prompts",
    }
    shown = {f"{name}, mean": name for name in series}
    draw = partial(bars, rows=rows, name=lambda row: str(row["tree"]), series=shown, ylabel="accept_length")
    context.finish("acceptance", "Mean accepted length on the pocket pair", columns, rows, settings, notes, draw)
