"""The `adapters` benchmark: what LoRA adapters cost a forward of sixteen sessions, by how many different ones these have."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure

from benchmarks.context import Context
from benchmarks.plots import lines
from benchmarks.report import Row
from benchmarks.runner import rounds
from benchmarks.spread import spread
from specsplit.model import CausalLM, PageTable
from specsplit.model import Row as ModelRow
from tests.support.adapters import write_adapter

SESSIONS, RANK, BEFORE = 16, 16, 64
ADAPTERS = (0, 1, 4, 16)
"""Different ones that the sessions have; with 0 none has any."""
NODES = (1, 8)
PAGE = 16
NONE = "none loaded"
COLUMNS = {
    "nodes": "tokens of a session",
    "way": "adapters in the batch",
    "median_ms": "forward, median, ms",
    "spread": "quartiles",
    "ratio": "of that with 0",
    "ratio_spread": "quartiles of the ratio",
}
Cell = tuple[int, str]
"""(tokens of a session, adapters in the batch)"""


class Batch:
    """Sixteen sessions of one model, with a text of the same length behind each."""

    def __init__(self, target: Path, adapters: Path | None) -> None:
        pages = SESSIONS * (-(-(BEFORE + max(NODES)) // PAGE)) + 16
        self._lm = CausalLM.load(target, num_pages=pages, page_size=PAGE, adapters=adapters)
        self._tables = [PageTable(self._lm.pool) for _ in range(SESSIONS)]
        for table in self._tables:
            table.reserve(BEFORE + max(NODES))
        texts = [[3 + (session * 7 + each) % 900 for each in range(BEFORE)] for session in range(SESSIONS)]
        tables = zip(texts, self._tables, strict=True)
        self._lm.forward([ModelRow.chunk(text, table.upto(BEFORE)) for text, table in tables])

    def seconds(self, nodes: int, adapters: int) -> float:
        """What a forward takes in which each session has a tree of so many tokens; sessions of one adapter do not lie side by side."""
        parents = [-1, *(node // 2 for node in range(nodes - 1))]
        tokens = list(range(5, 5 + nodes))
        rows = [
            ModelRow.tree(tokens, parents, table.upto(BEFORE + nodes), adapter=adapters and session % adapters + 1)
            for session, table in enumerate(self._tables)
        ]
        started = time.perf_counter()
        self._lm.forward(rows)
        return time.perf_counter() - started


def run(context: Context) -> None:
    """Measure, print, write."""
    torch.set_num_threads(1)  # as the services do
    repeats, ways = 3 if context.quick else 60, [NONE, *map(str, ADAPTERS)]
    cells = [(nodes, way) for nodes in NODES for way in ways]
    seconds: dict[Cell, list[float]] = {cell: [] for cell in cells}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(max(ADAPTERS)):
            write_adapter(
                Path(folder, f"a{number:02}"), context.target, number, rank=RANK, alpha=float(RANK), size=0.02
            )
        without, adapted = Batch(context.target, None), Batch(context.target, Path(folder))
    for (nodes, way), repeat in rounds(context, "adapters", cells, repeats, str, back_and_forth=True):
        taken = without.seconds(nodes, 0) if way == NONE else adapted.seconds(nodes, int(way))
        seconds[nodes, way] += [taken] if repeat else []
    rows = [_row(nodes, way, each, seconds[nodes, str(0)]) for (nodes, way), each in seconds.items()]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        shown = [row | {"count": int(str(row["way"]))} for row in rows if row["way"] != NONE]
        lines(axes, shown, lambda row: f"{row['nodes']} tokens of a session", "count", "ratio")
        axes.set_xlabel(f"different adapters of rank {RANK} in a batch of {SESSIONS}")
        axes.set_ylabel("forward, of that with none")
        axes.legend(fontsize=8)

    settings: dict[str, object] = {
        "target": str(context.target), "sessions": SESSIONS, "rank": RANK, "tokens before": BEFORE, "repeats": repeats, "threads": 1,
    }  # fmt: skip
    notes = [
        "Ratios are of forwards next to one another in time. Adapters add to all seven projections of every layer.",
        f"{NONE}: by a target without adapters_dir.",
    ]
    context.finish("adapters", "What adapters cost a forward", COLUMNS, rows, settings, notes, draw)


def _row(nodes: int, way: str, seconds: list[float], base: list[float]) -> Row:
    found = spread([each * 1e3 for each in seconds])
    ratio = spread([mine / theirs for mine, theirs in zip(seconds, base, strict=True)])
    return {"nodes": nodes, "way": way, "median_ms": found.median, "spread": found.quartiles(".4g"), "ratio": ratio.median,
            "ratio_spread": ratio.quartiles(".3f")}  # fmt: skip
