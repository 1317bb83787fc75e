"""What the time of a step goes to, as a table: estimated before there was a GPU, and measured by `make gpu`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.gpu.findings import Findings
from benchmarks.report import Report, Row

PART = "profile"
"""The part of the benchmark that measures it."""
FLOOR, PRODUCTS, ELEMENTWISE, ATTENTION, OTHERS, HOST, STEP, AIM = (
    "memory floor", "products", "elementwise", "attention", "copies and picks", "host", "step", "aim",
)  # fmt: skip
PAGE = Path("docs/gpu.md")
_BLOCK = re.compile(r"(?<=<!-- budget: written by make gpu -->\n\n).*?(?=\n\n<!-- /budget -->)", re.DOTALL)
_LINES = {
    FLOOR: ("weights and KV once, over the bandwidth of a large copy", "5.0"),
    PRODUCTS: ("matrix products", "6.2 to 6.6 with attention, which is what is left of the step"),
    ELEMENTWISE: (
        "5 of the 11 or 12 kernels of a layer: norms with sums, rotation with the writing of KV, activation, sum (30 of 44 and 1.8 ms with "
        "`gpu_layers = off`)",
        "0.3",
    ),
    ATTENTION: ("attention kernels, merges included", "with the products"),
    OTHERS: (
        "copies to and from the device, and kernels that pick tokens",
        "0.03 to 0.05 for top_k or top_p of one row over 128k tokens",
    ),
    HOST: (
        "what of the step no kernel runs in: FlashInfer's plan on the host (`triton` has none), launches, gaps between kernels",
        "0.1 to 0.3",
    ),
    STEP: ("all of it, the floor not added", "6.8 to 7.0 (1.4 times the floor; 8.3 to 8.5 with `gpu_layers = off`)"),
    AIM: ("the step is to take no longer", "6.25 (1.25 times the floor)"),
}
"""What each part of a step is, and its estimate in milliseconds."""


def measured(findings: Findings) -> dict[str, float]:
    """Milliseconds by part of a step, as the part `profile` has found them."""
    return {each.name: each.value for each in findings.figures if each.part == PART and each.name in _LINES}


def budget(found: Mapping[str, float]) -> Report:
    """The table, with what was measured of it."""
    columns = {"name": "part of a step", "what": "what", "estimate": "estimate", "measured": "measured"}
    rows: list[Row] = [
        {"name": name, "what": what, "estimate": estimate, "measured": f"{found[name]:.3g}" if name in found else ""}
        for name, (what, estimate) in _LINES.items()
    ]
    return Report("gpu_budget", "The budget of a step, in milliseconds", columns, rows, {})


def written(page: str, found: Mapping[str, float]) -> str:
    """A page whose block of the budget says what was measured. Raises ValueError if it has none."""
    if _BLOCK.search(page) is None:
        raise ValueError(
            f"{PAGE} has no block of the budget, expected <!-- budget: written by make gpu --> and <!-- /budget -->"
        )
    table = "\n".join(budget(found).table())
    return _BLOCK.sub(lambda _: table, page)
