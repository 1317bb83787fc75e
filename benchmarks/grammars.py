"""The `grammars` benchmark: tokens a step where output is held to a JSON schema, beside those of free text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import cycle

from matplotlib.figure import Figure

from benchmarks.context import Context
from benchmarks.drafter_process import drafter as process_of
from benchmarks.prompts import held_out
from benchmarks.rank import generate, rank, recorded, request
from benchmarks.report import Row
from benchmarks.schemas import SCHEMAS
from benchmarks.spread import percentile
from specsplit.cli.folders import drafts_beside
from specsplit.sessions import DecodeRequest
from specsplit.settings import DrafterSettings, VerifierSettings
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import Adaptive, Constraint, ConstraintKind, DrafterKind, Endpoint, PlanChanges, Sampling
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.step import StepResult

PROMPT, NEW = 48, 96
AIM = 1.3
KINDS = (DrafterKind.NGRAM, DrafterKind.EAGLE3)
TEMPERATURES = (0.0, 0.8)
WAITING = PlanChanges(num_steps=8, topk=4, num_draft_tokens=16, draft_ahead=False, wait_budget_us=2_000_000)
"""Steps wait for their drafts, so that what is accepted does not depend on how busy the machine is."""
COLUMNS = {
    "schema": "output", "drafter": "drafter", "temperature": "T", "tokens": "tokens", "whole": "whole",
    "free": "tokens a step, free text", "held": "tokens a step, held to it", "ratio": "ratio", "undrafted": "without drafts",
    "host_p50_ms": "host p50, ms",
}  # fmt: skip


@dataclass
class Written:
    """What came of several texts."""

    tokens: int = 0
    steps: int = 0
    whole: int = 0
    """Texts that are whole objects."""
    texts: int = 0
    host_ms: list[float] = field(default_factory=list[float])

    @property
    def each(self) -> float:
        """Tokens a step."""
        return self.tokens / max(1, self.steps)


class Writer:
    """Has a verifier write texts behind held-out prompts."""

    def __init__(self, context: Context, verifier: Verifier, steps: list[StepResult]) -> None:
        self._prompts: list[list[int]] = held_out(context.target, PROMPT, 8).tolist()
        self._count = 2 if context.quick else 4
        self._tokenizer = Tokenizer.load(context.target)
        self._verifier, self._steps = verifier, steps

    async def free(self, temperature: float, drafter: Endpoint | None) -> Written:
        """Texts that are held to nothing."""
        return await self._write(None, temperature, drafter)

    async def held(
        self, schema: Mapping[str, object], temperature: float, drafter: Endpoint | None, **how: bool
    ) -> Written:
        """Texts that are held to a schema."""
        return await self._write(
            Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)), temperature, drafter, **how
        )

    async def _write(
        self, constraint: Constraint | None, temperature: float, drafter: Endpoint | None, **how: bool
    ) -> Written:
        written = Written()
        for seed, prompt in zip(range(self._count), cycle(self._prompts), strict=False):
            wanted = request(prompt, NEW, Sampling(temperature, seed=seed), drafter, WAITING)
            await self._one(replace(wanted, constraint=constraint, **how), written)
        return written

    async def _one(self, wanted: DecodeRequest, written: Written) -> None:
        self._steps.clear()
        made = await generate(self._verifier, wanted)
        written.tokens += len(made.tokens)
        written.steps += made.speculation.steps
        written.texts += 1
        written.whole += _is_whole(self._tokenizer.decode(made.tokens))
        written.host_ms += [step.host_us / 1e3 for step in self._steps if not step.prefill_tokens]


def _is_whole(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


async def _measure(context: Context, drafters: Mapping[str, Endpoint | None]) -> list[Row]:
    rows: list[Row] = []
    schemas = dict(list(SCHEMAS.items())[:3] if context.quick else SCHEMAS.items())
    settings = VerifierSettings(model=context.target, adaptive=Adaptive.STATIC, prefix_cache=False)
    cells = [(kind, temperature) for kind in drafters for temperature in TEMPERATURES]
    async with rank(settings) as verifier:
        writer = Writer(context, verifier, recorded(verifier))
        with context.progress("grammars", len(cells) * len(schemas)) as advance:
            for kind, temperature in cells:
                drafter = drafters[kind]
                free = await writer.free(temperature, drafter)
                rows.append(_row("free text", kind, temperature, free, free, free))
                for name, schema in schemas.items():
                    held = await writer.held(schema, temperature, drafter, any_drafter=True)
                    alone = await writer.held(schema, temperature, None)
                    rows.append(_row(name, kind, temperature, free, held, alone))
                    advance(f"{kind}, T={temperature:g}, {name}")
    return rows


def _row(name: str, kind: str, temperature: float, free: Written, held: Written, alone: Written) -> Row:
    return {
        "schema": name, "drafter": kind, "temperature": temperature, "tokens": held.tokens, "whole": f"{held.whole}/{held.texts}",
        "free": free.each, "held": held.each, "ratio": held.each / free.each, "undrafted": alone.each,
        "host_p50_ms": percentile(held.host_ms, 50),
    }  # fmt: skip


def _ratio(rows: Sequence[Row], kind: str, temperature: float) -> float:
    """Over all schemas: the mean of the ratios."""
    ratios = [
        float(str(row["ratio"]))
        for row in rows
        if (row["drafter"], row["temperature"]) == (kind, temperature) and row["schema"] != "free text"
    ]
    return sum(ratios) / len(ratios)


def run(context: Context) -> None:
    """Measure, print, write."""
    with ExitStack() as stack:
        drafters: dict[str, Endpoint | None] = {"none": None}
        drafters |= {kind.value: stack.enter_context(process_of(_settings(context, kind))) for kind in KINDS}
        rows = asyncio.run(_measure(context, drafters))
    means = {(kind, temperature): _ratio(rows, kind, temperature) for kind in drafters for temperature in TEMPERATURES}

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(TEMPERATURES), sharey=True)
        for panel, temperature in zip(panels, TEMPERATURES, strict=True):
            for kind in drafters:
                here = [row for row in rows if (row["drafter"], row["temperature"]) == (kind, temperature)]
                panel.plot([row["schema"] for row in here], [row["held"] for row in here], ".-", label=kind)
            panel.set_title(f"T = {temperature:g}")
            panel.tick_params(axis="x", labelsize=6, rotation=90)
        panels[0].set_ylabel("tokens a step")
        panels[0].legend(fontsize=8)

    found = "; ".join(f"{kind}, T={temperature:g}: {ratio:.2f}" for (kind, temperature), ratio in means.items())
    notes = [
        f"Aim: tokens a step at least {AIM:g} times those of free text with ngram or eagle3. Mean of the ratios over the schemas: {found}.",
        "Steps wait for their drafts (8 levels, 16 tokens). none: no drafter; of free text nothing is drafted then, and of output that is "
        "held to a schema what the schema forces. without drafts: the same text with none at all.",
        f"At most {NEW} tokens behind {PROMPT} of a held-out file of Python, which the pocket target was trained on: it has seen hardly "
        "any JSON. whole: how many of the texts came to their end within that.",
    ]
    context.finish(
        "grammars", "Tokens a step of output that is held to a schema", COLUMNS, rows, {"target": "pocket"}, notes, draw
    )


def _settings(context: Context, kind: DrafterKind) -> DrafterSettings:
    target = context.target if kind.is_head else None
    return DrafterSettings(kind=kind, model=drafts_beside(context.target).get(kind), target=target)
