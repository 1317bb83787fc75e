"""The `speedup` benchmark: tokens per second at batch 1, with and without drafters, and transformers' `generate` beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure

from benchmarks.account import Account, VerifierAccount
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
    "token_ms": "ms a token", "forward_ms": "forward", "drafting_ms": "drafting, waiting", "host_ms": "host",
    "rest_ms": "rest", "calls": "forwards a token",
}  # fmt: skip


class Made(NamedTuple):
    """One text that was generated."""

    tokens: list[int]
    seconds: float
    """From request to last token."""
    accept_length: float
    """NaN where the way does not tell."""
    account: Account


Way = Callable[[list[int], int, float, int], Made]
"""Given a prompt, the number of new tokens, a temperature and a seed."""


@dataclass(frozen=True)
class Subject:
    """What is measured: a target, and what it is asked."""

    name: str
    """The stem of the names of its result files."""
    title: str
    target: Path
    draft: Path | None
    """The folder of the draft model, for assistant_model."""
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
    tokens: int = 0
    seconds: float = 0.0
    account: Account = field(default_factory=Account)
    """Sums over all of it, as are the two above."""

    def per_token(self) -> Row:
        """Where a token's milliseconds go. `host` is of specsplit's engine alone; whatever nobody accounts for is `rest`."""
        each, spent = 1e3 / self.tokens, self.account
        rest = self.seconds - spent.forward_s - spent.drafting_s - spent.host_s
        return {
            "token_ms": self.seconds * each, "forward_ms": spent.forward_s * each, "drafting_ms": spent.drafting_s * each,
            "host_ms": spent.host_s * each or "", "rest_ms": rest * each, "calls": spent.calls / self.tokens,
        }  # fmt: skip


def _ours(client: Client, verifier: VerifierAccount, drafter: str) -> Way:
    def way(prompt: list[int], new: int, temperature: float, seed: int) -> Made:
        before = verifier.read()
        started = time.perf_counter()
        done = client.generate(
            prompt, max_tokens=new, temperature=temperature, seed=seed, ignore_eos=True, drafter=drafter
        )
        seconds = time.perf_counter() - started
        return Made(list(done.tokens), seconds, done.speculation.accept_length, verifier.read() - before)

    return way


def _theirs(call: Generate) -> Way:
    def way(prompt: list[int], new: int, temperature: float, seed: int) -> Made:
        tokens, seconds, account = call(prompt, new, temperature, seed)
        return Made(tokens, seconds, math.nan, account)

    return way


def _round(way: Way, prompts: list[list[int]], new: int, temperature: float, into: Measured) -> None:
    tokens, seconds = 0, 0.0
    for number, prompt in enumerate(prompts):
        made = way(prompt, new, temperature, number)
        into.texts[number] = made.tokens
        into.lengths.append(made.accept_length)
        into.account += made.account
        tokens, seconds = tokens + len(made.tokens), seconds + made.seconds
    into.rates.append(tokens / seconds)
    into.tokens, into.seconds = into.tokens + tokens, into.seconds + seconds


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
    } | mine.per_token()  # fmt: skip


def run(context: Context, *, chat_model: bool = False) -> None:
    """Measure, print, write."""
    torch.set_num_threads(1)
    subject = chat() if chat_model else pocket(context)
    models = drafts_beside(subject.target)
    kinds = [kind for kind in KINDS if kind in models or not kind.needs_model]
    account = VerifierAccount()
    verifier = {"inflate_layers": subject.layers, "metrics_listen": "127.0.0.1:0", "prefix_cache": False}
    started = LocalCluster(subject.target, models, drafters=kinds, verifier=verifier, listener=account.hear)
    with started as cluster, cluster.client() as client:
        drafters = {ALONE: "none"} | {f"specsplit, {kind.value}": kind.value for kind in kinds}
        ways = {name: _ours(client, account, drafter) for name, drafter in drafters.items()}
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
        "are processes of their own, target and draft on one thread each. generate: one process. float32, the same weights everywhere. "
        "Every way reads each prompt anew (prefix_cache = off), since prompts come back and generate keeps nothing of them.",
        *(["assistant_model: the standalone draft, transformers' default schedule."] if subject.draft else []),
        f"Prompt lookup: prompt_lookup_num_tokens={PROMPT_LOOKUP}.",
        "Milliseconds a token: specsplit's verifier tells forward, waiting and host (its metrics); generate's models are timed where they "
        "are called. Rest: client, coordinator, gRPC and what comes before the first step; with generate, all but its models.",
    ]
    settings: dict[str, object] = {
        "inflate_layers": subject.layers or "none",
        "batch": 1,
        "prompt": subject.prompt,
        "plan": "default",
        "threads": "1 per model unless named",
        "prefix_cache": "off",
    }
    context.finish(subject.name, subject.title, COLUMNS, rows, settings, notes, draw)
