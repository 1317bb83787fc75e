"""The `speedup` benchmark: tokens per second at batch 1, with and without drafters, and transformers' `generate` beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from matplotlib.figure import Figure

from benchmarks.context import Context
from benchmarks.plain import PROMPT_LOOKUP, Generate, generators
from benchmarks.prompts import held_out
from benchmarks.report import Row
from benchmarks.spread import spread
from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.client import Client
from specsplit.values import DrafterKind

LAYERS = 24
PROMPT, NEW = 64, 96
TEMPERATURES = (0.0, 1.0)
KINDS = (DrafterKind.EAGLE3, DrafterKind.STANDALONE, DrafterKind.NGRAM)
ALONE, PLAIN = "specsplit, no drafter", "generate, 1 thread"
COLUMNS = {
    "way": "way", "temperature": "T", "rate": "tokens/s", "spread": "quartiles", "of_alone": "of no drafter",
    "of_plain": "of generate", "accept_length": "accept_length", "same_text": "text as generate's",
}  # fmt: skip

Way = Callable[[list[int], int, float, int], tuple[list[int], float, float]]
"""(prompt, new tokens, temperature, seed) -> (tokens, seconds, accept_length or nan)."""


@dataclass
class Measured:
    """What one way gave at one temperature."""

    rates: list[float] = field(default_factory=list)
    """Tokens per second, one per repeat over all prompts."""
    lengths: list[float] = field(default_factory=list)
    texts: dict[int, list[int]] = field(default_factory=dict)
    """By prompt; the latest."""


def _ours(client: Client, drafter: str) -> Way:
    def way(prompt: list[int], new: int, temperature: float, seed: int) -> tuple[list[int], float, float]:
        started = time.perf_counter()
        done = client.generate(
            prompt, max_tokens=new, temperature=temperature, seed=seed, ignore_eos=True, drafter=drafter
        )
        return list(done.tokens), time.perf_counter() - started, done.speculation.accept_length

    return way


def _theirs(call: Generate) -> Way:
    def way(prompt: list[int], new: int, temperature: float, seed: int) -> tuple[list[int], float, float]:
        return *call(prompt, new, temperature, seed), math.nan

    return way


def _round(way: Way, prompts: list[list[int]], new: int, temperature: float, into: Measured) -> None:
    tokens, seconds = 0, 0.0
    for number, prompt in enumerate(prompts):
        text, took, length = way(prompt, new, temperature, number)
        into.texts[number] = text
        into.lengths.append(length)
        tokens, seconds = tokens + len(text), seconds + took
    into.rates.append(tokens / seconds)


def _measure(context: Context, ways: dict[str, Way]) -> dict[tuple[str, float], Measured]:
    new, count, repeats = (48, 1, 1) if context.quick else (NEW, 4, 3)
    prompts = held_out(context.target, PROMPT, count).tolist()
    measured = {(name, t): Measured() for t in TEMPERATURES for name in ways}
    with context.progress("speedup", len(measured) * (repeats + 1)) as advance:
        for repeat in range(repeats + 1):
            for (name, t), into in measured.items():  # interleaved, so that all ways meet the machine in every mood
                # The first round warms up.
                chosen, sink = (prompts, into) if repeat else (prompts[:1], Measured())
                _round(ways[name], chosen, new, t, sink)
                advance(f"{name}, T={t:g}")
    return measured


def _row(name: str, temperature: float, measured: dict[tuple[str, float], Measured]) -> Row:
    mine, plain = measured[name, temperature], measured[PLAIN, temperature]
    rate = spread(mine.rates)
    same = sum(mine.texts[n] == plain.texts[n] for n in plain.texts)
    length = spread(mine.lengths).median
    return {
        "way": name, "temperature": temperature, "rate": rate.median, "rate_spread": rate, "spread": f"{rate.low:.3g}..{rate.high:.3g}",
        "of_alone": rate.median / spread(measured[ALONE, temperature].rates).median,
        "of_plain": rate.median / spread(plain.rates).median,
        "accept_length": "" if math.isnan(length) else length,  # generate does not tell
        "same_text": f"{same} of {len(plain.texts)}" if temperature == 0 else "",
    }  # fmt: skip


def run(context: Context) -> None:
    """Measure, print, write."""
    torch.set_num_threads(1)
    models = drafts_beside(context.target)
    kinds = [kind for kind in KINDS if kind in models or not kind.needs_model]
    cluster = LocalCluster(context.target, models, drafters=kinds, verifier={"inflate_layers": LAYERS})
    with cluster, cluster.client() as client:
        ways = {ALONE: _ours(client, "none")} | {f"specsplit, {k.value}": _ours(client, k.value) for k in kinds}
        ways |= {name: _theirs(call) for name, call in generators(context.target, context.draft, LAYERS).items()}
        measured = _measure(context, ways)
    rows = [_row(name, temperature, measured) for name, temperature in measured]

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(TEMPERATURES), sharey=True)
        for panel, temperature in zip(axes, TEMPERATURES, strict=True):
            here = [r for r in rows if r["temperature"] == temperature]
            panel.bar([str(r["way"]).replace(", ", ",\n") for r in here], [r["rate"] for r in here])
            panel.set_title(f"temperature {temperature:g}")
            panel.tick_params(axis="x", labelsize=6)
        axes[0].set_ylabel("tokens/s, batch 1")

    notes = [
        f"The pocket target inflated to {LAYERS} layers: acceptance is the pocket pair's, "
        "the cost of a step that of a model four times as deep.",
        "From request to last token, prompt included, as the caller sees it. specsplit: client, coordinator, verifier and drafters "
        "are processes of their own, target and draft on one thread each. generate: one process. float32, the same weights everywhere.",
        f"assistant_model: the standalone draft, transformers' default schedule. Prompt lookup: prompt_lookup_num_tokens={PROMPT_LOOKUP}.",
    ]
    settings: dict[str, object] = {
        "inflate_layers": LAYERS,
        "batch": 1,
        "prompt": PROMPT,
        "plan": "default",
        "threads": "1 per model unless named",
    }
    context.finish("speedup", "Tokens per second at batch 1", COLUMNS, rows, settings, notes, draw)
