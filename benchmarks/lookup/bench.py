"""The `lookup` benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from benchmarks.context import Context
from benchmarks.lookup.drafting import Drafting, Ngram, PromptLookup
from benchmarks.lookup.turn import TRACES, Turn, read
from benchmarks.plots import panels
from benchmarks.report import Row

NODES = 16
HEADINGS = {"chat": "chat", "edits": "edits of a file", "tools": "calls of tools"}
"""By trace."""
BEFORE = {"chat": 566 / 305, "edits": 3684 / 299, "tools": 633 / 118}
"""Tokens a step of the n-gram drafter at commit ed564ac7, before it looked for suffixes, along these traces and with as many nodes."""
AIM = 1.2
"""Of what it gave before."""
SHARED, LOOKUP = "n-gram, shared outputs", "lookup, 10 tokens"
DRAFTERS: Mapping[str, Callable[[], Drafting]] = {
    "n-gram": partial(Ngram, NODES),
    SHARED: partial(Ngram, NODES, b"client"),
    LOOKUP: partial(PromptLookup, 10),
    f"lookup, {NODES} tokens": partial(PromptLookup, NODES),
}


def tokens_a_step(drafting: Drafting, turns: Sequence[Turn]) -> float:
    """Divide all tokens of the outputs by all steps."""
    steps = [committed for turn in turns for committed in drafting.follow(turn)]
    return sum(steps) / len(steps)


def aims(found: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Say of each trace whether the n-gram drafter does what it is to do, given tokens a step by drafter and trace."""
    for trace, heading in HEADINGS.items():
        ours = found[SHARED][trace]
        gained, ahead = ours / BEFORE[trace], ours / found[LOOKUP][trace]
        yield (
            f"{heading}: with shared outputs {gained:.2f} of the n-gram drafter before it looked for suffixes "
            f"({BEFORE[trace]:.2f}; aim {AIM}: {_verdict(gained >= AIM)}), {ahead:.2f} of {LOOKUP} (aim 1: {_verdict(ahead >= 1)})."
        )


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


def run(context: Context) -> None:
    """Replay, print, write."""
    traces = {trace: read(TRACES / f"{trace}.jsonl") for trace in HEADINGS}
    found: dict[str, dict[str, float]] = {}
    with context.progress("lookup", len(DRAFTERS) * len(traces)) as advance:
        for name, drafter in DRAFTERS.items():
            found[name] = {}
            for trace, turns in traces.items():
                found[name][trace] = tokens_a_step(drafter(), turns)
                advance(f"{name}, {trace}")
    rows: list[Row] = [{"drafter": name, **of_traces} for name, of_traces in found.items()]
    notes = [
        f"Tokens a step, greedy: outputs over the steps that they would take, replayed without a model. At most {NODES} nodes of a step, "
        f"the root not counted, so {NODES + 1} tokens are the most that one commits. Shared outputs are those of earlier turns.",
        "chat: what SmolLM2-135M-Instruct writes to the eight messages of `benchmarks peers`. edits: a file of 560 tokens is renamed in "
        "and inserted into, and written out as a whole. tools: JSON that repeats results of earlier calls. The last two are made up.",
        "Lookup is the class that transformers has for prompt lookup: n-grams of 2 at most, drafts of 10 tokens, its default, or of 16.",
        *aims(found),
    ]
    settings: dict[str, object] = {
        f"tokens of {trace}": f"{sum(len(turn.output) for turn in turns)} in {len(turns)} outputs"
        for trace, turns in traces.items()
    }
    draw = partial(
        panels, rows=rows, name="drafter", keys={trace: f"{each}, tokens a step" for trace, each in HEADINGS.items()}
    )
    context.finish(
        "lookup", "Drafters without a model, along recorded texts", {"drafter": "drafter", **HEADINGS}, rows, settings, notes, draw
    )  # fmt: skip
