"""The `speedup` benchmark: tokens per second at batch 1, with and without drafters, and transformers' `generate` beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from matplotlib.figure import Figure

from benchmarks.context import Context
from benchmarks.lab.chat import MESSAGES, chats
from benchmarks.plain import PROMPT_LOOKUP, Generate, generators
from benchmarks.prompts import held_out
from benchmarks.report import Row
from benchmarks.spread import spread
from specsplit.cli.folders import drafts_beside, is_model
from specsplit.cli.local import LocalCluster
from specsplit.client import Client
from specsplit.errors import InvalidRequest
from specsplit.values import DrafterKind

LAYERS = 24
PROMPT, NEW = 64, 96
PROMPTS = 4
CHAT = Path("build/chat/target")
"""Where scripts.chat_model puts SmolLM2-135M-Instruct."""
TEMPERATURES = (0.0, 1.0)
KINDS = (DrafterKind.EAGLE3, DrafterKind.STANDALONE, DrafterKind.NGRAM)
ALONE, PLAIN = "specsplit, no drafter", "generate, 1 thread"
COLUMNS = {
    "way": "way", "temperature": "T", "rate": "tokens/s", "spread": "quartiles", "of_alone": "of no drafter",
    "of_plain": "of generate", "accept_length": "accept_length", "same_text": "text as generate's",
}  # fmt: skip

Way = Callable[[list[int], int, float, int], tuple[list[int], float, float]]
"""(prompt, new tokens, temperature, seed) -> (tokens, seconds, accept_length or nan)."""


@dataclass(frozen=True)
class Subject:
    """What is measured: a target, and what it is asked."""

    name: str
    """Of the files of its results."""
    title: str
    target: Path
    draft: Path | None
    """For assistant_model."""
    layers: int
    """The target is inflated to so many; 0 leaves it as it is."""
    prompts: list[list[int]]
    note: str
    prompt: str
    """What the prompts are, for the settings below the table."""


def pocket(context: Context) -> Subject:
    """The pocket target on held-out text."""
    note = (
        f"The pocket target inflated to {LAYERS} layers: acceptance is the pocket pair's, "
        "the cost of a step that of a model four times as deep."
    )
    prompts = held_out(context.target, PROMPT, PROMPTS).tolist()
    title = "Tokens per second at batch 1"
    return Subject("speedup", title, context.target, context.draft, LAYERS, prompts, note, f"{PROMPT} held-out tokens")


def chat() -> Subject:
    """A real chat model on messages of the kinds that people send. Raises InvalidRequest if it has not been fetched."""
    if not is_model(CHAT):
        raise InvalidRequest("chat", f"needs a model in {CHAT}; fetch it with: python -m scripts.chat_model (92 MB)")
    prompts = [list(prompt) for prompt in chats(CHAT, len(MESSAGES))]
    note = (
        "SmolLM2-135M-Instruct, 30 layers, as it is, on one message each: edit this code, summarise this text, answer from it, talk to me. "
        "No draft is made for it, so specsplit has the n-gram drafter alone."
    )
    title = "Tokens per second at batch 1, a chat model"
    return Subject(
        "speedup_chat", title, CHAT, None, 0, prompts, note, "messages of a chat, in the model's own template"
    )


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


def _measure(context: Context, ways: dict[str, Way], prompts: list[list[int]]) -> dict[tuple[str, float], Measured]:
    new, count, repeats = (48, 1, 1) if context.quick else (NEW, len(prompts), 3)
    prompts = prompts[:count]
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


def run(context: Context, *, chat_model: bool = False) -> None:
    """Measure, print, write."""
    torch.set_num_threads(1)
    subject = chat() if chat_model else pocket(context)
    models = drafts_beside(subject.target)
    kinds = [kind for kind in KINDS if kind in models or not kind.needs_model]
    started = LocalCluster(subject.target, models, drafters=kinds, verifier={"inflate_layers": subject.layers})
    with started as cluster, cluster.client() as client:
        ways = {ALONE: _ours(client, "none")} | {f"specsplit, {k.value}": _ours(client, k.value) for k in kinds}
        theirs = generators(subject.target, subject.draft, subject.layers)
        ways |= {name: _theirs(call) for name, call in theirs.items()}
        measured = _measure(context, ways, subject.prompts)
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
        subject.note,
        "From request to last token, prompt included, as the caller sees it. specsplit: client, coordinator, verifier and drafters "
        "are processes of their own, target and draft on one thread each. generate: one process. float32, the same weights everywhere.",
        *(["assistant_model: the standalone draft, transformers' default schedule."] if subject.draft else []),
        f"Prompt lookup: prompt_lookup_num_tokens={PROMPT_LOOKUP}.",
    ]
    settings: dict[str, object] = {
        "inflate_layers": subject.layers or "none",
        "batch": 1,
        "prompt": subject.prompt,
        "plan": "default",
        "threads": "1 per model unless named",
    }
    context.finish(subject.name, subject.title, COLUMNS, rows, settings, notes, draw)
