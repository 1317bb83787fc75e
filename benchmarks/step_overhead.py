"""The `step_overhead` benchmark: what a step costs outside the model's forward."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from math import nan

from matplotlib.figure import Figure

from benchmarks import admission
from benchmarks.context import Context
from benchmarks.drafter_process import drafter as process_of
from benchmarks.prompts import held_out
from benchmarks.rank import generate, rank, recorded, request
from benchmarks.report import Row
from benchmarks.runner import rounds
from benchmarks.spread import percentile
from benchmarks.streamed import bench as streamed
from specsplit.cli.folders import drafts_beside
from specsplit.settings import DrafterSettings, VerifierSettings
from specsplit.values import Adaptive, DrafterKind, Endpoint, Sampling
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.step import StepResult

PROMPT, NEW = 64, 128
AIMS_MS = {1: 0.7, 16: 3.0}
TEMPERATURES = (0.0, 1.0)
KINDS = (DrafterKind.NGRAM, DrafterKind.STANDALONE, DrafterKind.EAGLE3)
CONTROLLERS = (Adaptive.GOODPUT, Adaptive.STATIC)
PART = 0.75
"""Share of the sessions of a batch: steps in which fewer take part are not counted."""
COLUMNS = {
    "batch": "batch", "controller": "adaptive", "drafter": "drafter", "temperature": "T", "steps": "steps",
    "host_p50_ms": "host p50, ms", "host_p90_ms": "host p90, ms", "aim_ms": "aim for p50, ms", "forward_p50_ms": "forward p50, ms",
    "drafted": "steps with drafts", "drafted_host_p50_ms": "their host p50, ms", "drafted_tokens_p50": "their tokens",
    "accept_length": "accept_length", "edge_us": "edge, us a token", "first_ms": "first admission, ms",
}  # fmt: skip

Cell = tuple[int, str, float]
"""(sessions, drafter, temperature)."""


async def _round(
    verifier: Verifier,
    steps: list[StepResult],
    prompts: list[list[int]],
    new: int,
    temperature: float,
    drafter: Endpoint | None,
) -> list[StepResult]:
    """All `prompts` at once; of the `steps` that come, those in which enough sessions took part and no prompt was read."""
    steps.clear()
    samplings = [Sampling(temperature=temperature, seed=number) for number in range(len(prompts))]
    await asyncio.gather(
        *(generate(verifier, request(p, new, s, drafter)) for p, s in zip(prompts, samplings, strict=True))
    )
    enough = [step for step in steps if len(step.sessions) >= PART * len(prompts)]
    return [step for step in enough if not step.prefill_tokens]


def _row(controller: Adaptive, cell: Cell, records: list[StepResult]) -> Row:
    batch, name, temperature = cell
    host, sessions = [r.host_us / 1e3 for r in records], sum(len(r.sessions) for r in records)
    drafted = [r for r in records if r.drafted]
    return {
        "batch": batch, "controller": controller.value, "drafter": name, "temperature": temperature, "steps": len(records),
        "aim_ms": AIMS_MS[batch], "host_p50_ms": percentile(host, 50), "host_p90_ms": percentile(host, 90),
        "forward_p50_ms": percentile([r.forward_us / 1e3 for r in records], 50), "drafted": len(drafted),
        "drafted_host_p50_ms": percentile([each.host_us / 1e3 for each in drafted], 50) if drafted else "",
        "drafted_tokens_p50": percentile([each.tokens for each in drafted], 50) if drafted else "",
        "accept_length": (sum(r.accepted for r in records) + sessions) / max(1, sessions),
        "edge_us": "", "first_ms": "",
    }  # fmt: skip


async def _measure(context: Context, controller: Adaptive, drafters: dict[str, Endpoint | None]) -> list[Row]:
    new, repeats = (48, 1) if context.quick else (NEW, 3)
    prompts = held_out(context.target, PROMPT, 16).tolist()
    cells = [(batch, name, t) for batch in AIMS_MS for name in drafters for t in TEMPERATURES]
    records: dict[Cell, list[StepResult]] = {cell: [] for cell in cells}
    async with rank(VerifierSettings(model=context.target, max_sessions=16, adaptive=controller)) as verifier:
        steps = recorded(verifier)
        named = "batch {0[0]}, {0[1]}".format
        for cell, repeat in rounds(context, f"step_overhead {controller}", cells, repeats, named):
            batch, name, temperature = cell
            chosen = [prompts[(repeat + i) % 16] for i in range(batch)]
            made = await _round(verifier, steps, chosen, new, temperature, drafters[name])
            records[cell] += made if repeat else []
    return [_row(controller, cell, made) for cell, made in records.items()]


def _verdict(rows: list[Row], column: str) -> str:
    """Whether all rows that have something in a column keep to the aim there."""
    measured = [row for row in rows if row["steps"] and row[column] != "" and row["aim_ms"] != ""]
    late = sum(row[column] > row["aim_ms"] for row in measured)  # pyright: ignore[reportOperatorIssue]
    return f"missed in {late} of {len(measured)} rows" if late else f"met in all {len(measured)} rows"


def _settings(context: Context, kind: DrafterKind) -> DrafterSettings:
    target = context.target if kind.is_head else None
    return DrafterSettings(kind=kind, model=drafts_beside(context.target).get(kind), target=target)


def run(context: Context) -> None:
    """Measure, print, write."""
    with ExitStack() as stack:
        drafters: dict[str, Endpoint | None] = {"none": None}
        drafters |= {kind.value: stack.enter_context(process_of(_settings(context, kind))) for kind in KINDS}
        rows: list[Row] = []
        for controller in CONTROLLERS:
            rows += asyncio.run(_measure(context, controller, drafters))
            drafters.pop("none", None)  # without one all controllers do the same
    rows.sort(key=lambda row: int(str(row["batch"])))
    streams = streamed.rows(context)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(AIMS_MS))
        for panel, (batch, aim) in zip(axes, AIMS_MS.items(), strict=True):
            here = [r for r in rows if r["batch"] == batch]
            names = [f"{r['drafter']}, {r['controller']}, T={r['temperature']:g}" for r in here]
            panel.bar(names, [r["host_p90_ms"] for r in here], color="lightgray", label="p90")
            panel.bar(names, [r["host_p50_ms"] for r in here], label="p50")
            panel.plot(names, [r["drafted_host_p50_ms"] or nan for r in here], "kx", label="p50 with drafts")
            panel.axhline(aim, color="black", linestyle="--", label="aim for p50")
            panel.set_title(f"batch {batch}")
            panel.tick_params(axis="x", labelsize=7, rotation=90)
        axes[0].set_ylabel("host time per step, ms")
        axes[1].legend(fontsize=8, loc="upper left")

    notes = [
        f"Aim: p50 <= {AIMS_MS[1]:g} ms at batch 1 and <= {AIMS_MS[16]:g} ms at batch 16: {_verdict(rows, 'host_p50_ms')}; "
        f"of steps with drafts alone: {_verdict(rows, 'drafted_host_p50_ms')}.",
        "goodput takes the root alone where drafts would not pay, which is often so with a target this quick; static has the plan of the "
        f"settings, and more steps with drafts. Steps of batch 16 have {PART:.0%} of its sessions at least.",
        "Host time: everything on the engine thread but the forward and waiting for a drafter. "
        "The drafter is another process on the same machine.",
        "The rows of streams: a target of one small layer and random weights, behind a verifier's own server, whose sessions another "
        "process reads on one DecodeSessions stream. The edge is the processor time of all threads but the engine's, by token. Aim: p50 <= "
        f"{streamed.AIMS_MS[64]:g} ms at batch 64: {_verdict(streams, 'host_p50_ms')}.",
        "The rows of admission are the scheduler's part of a step alone, while the first of so many requests reads the beginning that the "
        "others wait for; the first admission is the one that finds them all waiting.",
    ]
    settings: dict[str, object] = {"target": "pocket", "threads": 1, "prompt": PROMPT, "plan": "default"}
    context.finish(
        "step_overhead",
        "Host time per step outside the forward",
        COLUMNS,
        [*rows, *streams, *admission.rows()],
        settings,
        notes,
        draw,
    )
