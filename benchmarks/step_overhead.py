"""The `step_overhead` benchmark: what a step costs outside the model's forward."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from matplotlib.figure import Figure

from benchmarks.context import Context
from benchmarks.drafter_process import drafter as process_of
from benchmarks.prompts import held_out
from benchmarks.rank import generate, rank, recorded, request
from benchmarks.report import Row
from benchmarks.spread import percentile
from specsplit.cli.folders import drafts_beside
from specsplit.settings import DrafterSettings, VerifierSettings
from specsplit.values import DrafterKind, Endpoint, Sampling
from specsplit_verifier.step import StepResult
from specsplit_verifier.verifier import Verifier

PROMPT, NEW = 64, 128
AIMS_MS = {1: 0.7, 16: 3.0}
TEMPERATURES = (0.0, 1.0)
KINDS = (DrafterKind.NGRAM, DrafterKind.STANDALONE, DrafterKind.EAGLE3)
COLUMNS = {
    "batch": "batch", "drafter": "drafter", "temperature": "T", "steps": "steps",
    "host_p50_ms": "host p50, ms", "host_p90_ms": "host p90, ms", "aim_ms": "aim for p50, ms",
    "forward_p50_ms": "forward p50, ms", "tokens_p50": "tokens in a step", "accept_length": "accept_length",
}  # fmt: skip


async def _round(
    verifier: Verifier,
    steps: list[StepResult],
    prompts: list[list[int]],
    new: int,
    temperature: float,
    drafter: Endpoint | None,
) -> list[StepResult]:
    """All `prompts` at once; of the `steps` that come, those in which every session took part."""
    steps.clear()
    samplings = [Sampling(temperature=temperature, seed=number) for number in range(len(prompts))]
    await asyncio.gather(
        *(generate(verifier, request(p, new, s, drafter)) for p, s in zip(prompts, samplings, strict=True))
    )
    return [step for step in steps if len(step.sessions) == len(prompts) and not step.costs.prefill_tokens]


def _row(batch: int, name: str, temperature: float, records: list[StepResult]) -> Row:
    host, sessions = [r.costs.host_us / 1e3 for r in records], sum(len(r.sessions) for r in records)
    return {
        "batch": batch, "drafter": name, "temperature": temperature, "steps": len(records), "aim_ms": AIMS_MS[batch],
        "host_p50_ms": percentile(host, 50), "host_p90_ms": percentile(host, 90),
        "forward_p50_ms": percentile([r.costs.forward_us / 1e3 for r in records], 50),
        "tokens_p50": percentile([r.costs.tokens for r in records], 50),
        "accept_length": (sum(r.accepted for r in records) + sessions) / max(1, sessions),
    }  # fmt: skip


async def _measure(context: Context, drafters: dict[str, Endpoint | None]) -> list[Row]:
    new, repeats = (48, 1) if context.quick else (NEW, 3)
    prompts = held_out(context.target, PROMPT, 16).tolist()
    cells = [(batch, name, t) for batch in AIMS_MS for name in drafters for t in TEMPERATURES]
    records: dict[tuple[int, str, float], list[StepResult]] = {cell: [] for cell in cells}
    async with rank(VerifierSettings(model=context.target, max_sessions=16)) as verifier:
        steps = recorded(verifier)
        with context.progress("step_overhead", len(cells) * (repeats + 1)) as advance:
            for repeat in range(repeats + 1):
                for batch, name, temperature in cells:
                    chosen = [prompts[(repeat + i) % 16] for i in range(batch)]
                    made = await _round(verifier, steps, chosen, new, temperature, drafters[name])
                    records[batch, name, temperature] += made if repeat else []  # the first round warms up
                    advance(f"batch {batch}, {name}")
    return [_row(*cell, made) for cell, made in records.items()]


def _settings(context: Context, kind: DrafterKind) -> DrafterSettings:
    target = context.target if kind.is_head else None
    return DrafterSettings(kind=kind, model=drafts_beside(context.target).get(kind), target=target)


def run(context: Context) -> None:
    """Measure, print, write."""
    with ExitStack() as stack:
        drafters: dict[str, Endpoint | None] = {"none": None}
        drafters |= {kind.value: stack.enter_context(process_of(_settings(context, kind))) for kind in KINDS}
        rows = asyncio.run(_measure(context, drafters))

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(AIMS_MS))
        for panel, (batch, aim) in zip(axes, AIMS_MS.items(), strict=True):
            here = [r for r in rows if r["batch"] == batch]
            names = [f"{r['drafter']}\nT={r['temperature']:g}" for r in here]
            panel.bar(names, [r["host_p90_ms"] for r in here], color="lightgray", label="p90")
            panel.bar(names, [r["host_p50_ms"] for r in here], label="p50")
            panel.axhline(aim, color="black", linestyle="--", label="aim for p50")
            panel.set_title(f"batch {batch}")
            panel.tick_params(axis="x", labelsize=7)
        axes[0].set_ylabel("host time per step, ms")
        axes[0].legend(fontsize=8)

    late = [r for r in rows if r["host_p50_ms"] > r["aim_ms"]]  # pyright: ignore[reportOperatorIssue]
    notes = [
        f"Aim: p50 <= {AIMS_MS[1]:g} ms at batch 1 and <= {AIMS_MS[16]:g} ms at batch 16: "
        f"{'met' if not late else f'missed in {len(late)} rows'}.",
        "Host time: everything on the engine thread but the forward and waiting for a drafter. "
        "The drafter is another process on the same machine.",
    ]
    settings: dict[str, object] = {"target": "pocket", "threads": 1, "prompt": PROMPT, "plan": "default"}
    context.finish("step_overhead", "Host time per step outside the forward", COLUMNS, rows, settings, notes, draw)
