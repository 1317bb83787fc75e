"""Findings as a report: one table and one JSON file."""

from __future__ import annotations

from dataclasses import asdict

from benchmarks.gpu.aims import aim_of, unmeasured
from benchmarks.gpu.budget import budget, measured
from benchmarks.gpu.findings import Figure, Findings, Kernel
from benchmarks.report import Report, Row

COLUMNS = {
    "part": "part", "what": "of what", "name": "figure", "value": "median", "unit": "unit", "quartiles": "quartiles",
    "repeats": "of", "aim": "aim", "met": "met",
}  # fmt: skip
NAME = 90
"""Characters that are shown of a kernel's name, which may have thousands."""
NO_GPU = "NO GPU FIGURES: a dry run, tiny shapes on a CPU, which shows that every part works and nothing else."


def report(findings: Findings, machine: dict[str, object], settings: dict[str, object], *, cpu: bool) -> Report:
    """Put together what was measured, what was aimed at, and what was skipped."""
    rows = [_row(figure, cpu=cpu) for figure in findings.figures] + _without_figures(findings, cpu=cpu)
    title = "The benchmark of the GPU path, a dry run" if cpu else "The GPU path"
    return Report(
        "gpu_dry" if cpu else "gpu",
        title,
        COLUMNS,
        rows,
        machine | findings.facts,
        settings,
        [*([NO_GPU] if cpu else []), *skipped_notes(findings), *([] if cpu else NOTES)],
        [kernels_table(findings), budget(measured(findings))],
    )


def kernels_table(findings: Findings) -> Report:
    """The kernels of one replay."""
    columns = {"name": "kernel", "kind": "kind", "count": "launches", "us": "us", "share": "share"}
    rows = [_kernel(each) for each in findings.kernels]
    notes = [] if rows else ["There is no profile: see what was skipped."]
    return Report("gpu_kernels", "One step of 1 token of 8B, kernel by kernel", columns, rows, {}, notes=notes)


def _kernel(found: Kernel) -> Row:
    row: Row = asdict(found)
    return row | {"name": found.name[:NAME], "share": f"{found.share:.1%}"}


def skipped_notes(findings: Findings) -> list[str]:
    """Say what was not measured, and why."""
    return [f"Skipped in {skip.part}: {skip.what}: {skip.why}." for skip in findings.skips]


NOTES = [
    "A step: `TargetRunner.run` on the host's clock, from rows to accepted tokens on the host. A forward: what the engine says of it "
    "(`StepResult.forward_us`). Memory floor: bytes of weights (embeddings that are only looked up in left out) and KV that a step of 1 "
    "token reads, over the bandwidth of a large copy on the same device, read and written bytes counted.",
    "Host gap: from the beginning of one step of a session to the beginning of its next, less the forward. Waiting: the verifier waited "
    "for its drafter in it.",
    "1B and 8B: random weights in the shapes of Llama 3.2 1B and Llama 3.1 8B. Their text means nothing, so there is no acceptance: "
    "pair and rates are of the pocket target inflated to 32 layers. Pocket models have heads of 64 here, filled up with zeros: FlashInfer "
    "takes no heads of 32.",
    "Device at work: the union of all kernels and copies of the verifier's process in the profiler, which slows the host down.",
    "rates: from request to last token, prompt included; client, coordinator, verifier and drafters are processes of their own on the one "
    "card, and generate is one process.",
]


def _row(figure: Figure, *, cpu: bool) -> Row:
    aim = None if cpu else aim_of(figure.part, figure.what, figure.name)
    quartiles = "" if figure.low is None or figure.high is None else f"{figure.low:.4g}..{figure.high:.4g}"
    met = "" if aim is None else "yes" if aim.met(figure.value) else "no"
    row: Row = asdict(figure)
    return row | {"quartiles": quartiles, "aim": "" if aim is None else str(aim), "met": met}


def _without_figures(findings: Findings, *, cpu: bool) -> list[Row]:
    """Aims of which nothing was measured."""
    if cpu:
        return []
    empty: Row = {"value": "not measured", "unit": "", "quartiles": "", "repeats": 0, "met": "not measured"}
    return [
        {"part": aim.part, "what": aim.what, "name": aim.name, **empty, "aim": str(aim)} for aim in unmeasured(findings)
    ]
