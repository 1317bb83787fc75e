"""The `speedup` benchmark: tokens per second at batch 1, with and without drafters, and transformers' `generate` beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.account import VerifierAccount
from benchmarks.context import Context
from benchmarks.lab.chat import MESSAGES, chats
from benchmarks.plain import PROMPT_LOOKUP, generators
from benchmarks.plots import bars
from benchmarks.prompts import held_out
from benchmarks.report import Row
from benchmarks.runner import rounds
from benchmarks.spread import spread
from benchmarks.ways import ALONE, Measured, Way, ours, theirs
from specsplit.cli.folders import POCKET_LAYERS, drafts_beside, is_model
from specsplit.cli.local import LocalCluster
from specsplit.errors import InvalidRequest
from specsplit.values import DrafterKind

PROMPT, NEW = 64, 96
PROMPTS = 4
CHAT = Path("build/chat/target")
"""Where scripts.chat_model puts SmolLM2-135M-Instruct."""
TEMPERATURES = (0.0, 1.0)
KINDS = (DrafterKind.EAGLE3, DrafterKind.DFLASH, DrafterKind.STANDALONE, DrafterKind.NGRAM)
PLAIN = "generate, 1 thread"
COLUMNS = {
    "way": "way", "temperature": "T", "rate": "tokens/s", "spread": "quartiles", "of_alone": "of no drafter",
    "of_plain": "of generate", "accept_length": "accept_length", "same_text": "text as generate's",
    "token_ms": "ms a token", "forward_ms": "forward", "drafting_ms": "drafting, waiting", "host_ms": "host",
    "rest_ms": "rest", "calls": "forwards a token",
}  # fmt: skip


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
    note = f"The pocket target inflated to {POCKET_LAYERS} layers: acceptance is the pocket pair's, a step costs what one so deep does."
    prompts = held_out(context.target, PROMPT, PROMPTS).tolist()
    title = "Tokens per second at batch 1"
    return Subject(
        "speedup", title, context.target, context.draft, POCKET_LAYERS, prompts, note, f"{PROMPT} held-out tokens"
    )


def chat() -> Subject:
    """A real chat model on messages of the kinds that people send. Raises InvalidRequest if it has not been fetched."""
    if not is_model(CHAT):
        raise InvalidRequest("chat", f"needs a model in {CHAT}; fetch it with: python -m scripts.chat_model (92 MB)")
    prompts = [list(prompt) for prompt in chats(CHAT, len(MESSAGES))]
    note = (
        "SmolLM2-135M-Instruct, 30 layers, as it is, on one message each: edit this code, summarise this text, answer from it, talk to me. "
        "Nobody publishes a draft for it: its eagle3 head, where there is one, was trained by scripts.chat_head."
    )
    title = "Tokens per second at batch 1, a chat model"
    return Subject(
        "speedup_chat", title, CHAT, None, 0, prompts, note, "messages of a chat, in the model's own template"
    )


def _measure(context: Context, ways: dict[str, Way], prompts: list[list[int]]) -> dict[tuple[str, float], Measured]:
    new, count, repeats = (48, 1, 1) if context.quick else (NEW, len(prompts), 3)
    prompts = prompts[:count]
    measured = {(name, t): Measured() for t in TEMPERATURES for name in ways}
    for cell, repeat in rounds(context, "speedup", list(measured), repeats, lambda cell: f"{cell[0]}, T={cell[1]:g}"):
        chosen, into = (prompts, measured[cell]) if repeat else (prompts[:1], Measured())
        into.visit(ways[cell[0]], chosen, new, cell[1])
    return measured


def _row(name: str, temperature: float, measured: dict[tuple[str, float], Measured]) -> Row:
    mine, plain = measured[name, temperature], measured[PLAIN, temperature]
    rate = spread(mine.rates)
    return {
        "way": name, "temperature": temperature, "rate": rate.median, "rate_spread": rate, "spread": rate.quartiles(),
        "of_alone": rate.median / spread(measured[ALONE, temperature].rates).median,
        "of_plain": rate.median / spread(plain.rates).median,
        "accept_length": spread(mine.lengths).median if mine.lengths else "",  # generate does not tell
        "same_text": f"{mine.same_as(plain)} of {len(plain.texts)}" if temperature == 0 else "",
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
        ways = {name: ours(client, drafter, account.read) for name, drafter in drafters.items()}
        plain = generators(subject.target, subject.draft, subject.layers)
        ways |= {name: theirs(call) for name, call in plain.items()}
        measured = _measure(context, ways, subject.prompts)
    rows = [_row(name, temperature, measured) for name, temperature in measured]

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
    draw = partial(bars, rows=rows, name=lambda row: str(row["way"]), series={"rate": ""}, ylabel="tokens/s, batch 1")
    context.finish(subject.name, subject.title, COLUMNS, rows, settings, notes, draw)
