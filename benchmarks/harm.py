"""What a drafter costs whoever has it: tokens/s under `goodput` as a share of those without a drafter, in virtual time.

Drafters are made up, and replayed: useless, slow, taking cores from their verifier, good at once or later, or for one session in ten. The
n-gram drafter is the product's own, along texts that are made up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.context import Context
from benchmarks.lab.arrivals import Closed
from benchmarks.lab.cost import ExpansionCurve, StepCurve
from benchmarks.lab.laboratory import Laboratory
from benchmarks.lab.ledger import Ledger
from benchmarks.lab.replay import CONTEXT, ReplaySource
from benchmarks.lab.scenario import DrafterSpec, Policy, Scenario
from benchmarks.lab.source import Source
from benchmarks.lab.texts import TextSource
from benchmarks.lab.trace import Header, Level, Trace
from benchmarks.lookup.turn import TRACES, Turn, read
from benchmarks.plots import sideways
from benchmarks.report import Row

WINDOW_S = 30.0
LAW = 0.98
"""The least share that any window should have."""
STEP = StepCurve(60.0, per_token_us=2000.0)
QUICK, SLOW = ExpansionCurve(10.0), ExpansionCurve(300.0)
LOOKUP = ExpansionCurve(0.0, per_node_us=2000.0)
"""What the drafter without a model takes: 2 ms a session."""
PROMPT, TOKENS, SHORT = 16, 1200, 120
"""Tokens of a prompt, of an answer, and of a short one."""
UNLUCKY = 64
"""Tokens after which a drafter is good that is useless at first."""
ANSWER, PERIOD = 400, 24
"""Tokens of an answer that repeats itself, and of what it repeats."""
PLACES = tuple(40 + 150 * number % 340 for number in range(24))
"""Tokens after which answers begin to repeat themselves."""
RECORDED = 4 * read(TRACES / "chat.jsonl")
"""What SmolLM2-135M-Instruct answered to chat prompts, four times over."""
PROBABILITIES = (0.6, 0.2, 0.1, 0.05)
"""What every drafter says of its children, right or wrong."""
RIGHT, WRONG = Level(0, PROBABILITIES), Level(-1, PROBABILITIES)
HEADER = Header("made up", "made up", "standalone", by_depth=False)

Text = Callable[[int, int], bool]
"""Whether the first choice is right, by number of the session and of the token."""


def useless(session: int, token: int) -> bool:
    """Never."""
    return False


def good(session: int, token: int) -> bool:
    """Two times in three, drawn on the place."""
    return random.Random(session << 32 | token).random() < 2 / 3


def good_later(session: int, token: int) -> bool:
    """Always, but for the first tokens."""
    return token >= UNLUCKY


def one_in_ten(session: int, token: int) -> bool:
    """Always in one session of ten, the last of them, and never in the others."""
    return session % 10 == 9


def repeating(place: int) -> Turn:
    """Make an answer that says nothing again before some place, and from there on its last `PERIOD` tokens, again and again."""
    tokens = random.Random(place).sample(range(CONTEXT), PROMPT + place)
    while len(tokens) < PROMPT + ANSWER:
        tokens.append(tokens[-PERIOD])
    return Turn(tuple(tokens[:PROMPT]), tuple(tokens[PROMPT:]))


@dataclass(frozen=True)
class Harm:
    """A drafter, where it computes, and who asks."""

    name: str
    text: Text
    expansion: ExpansionCurve = QUICK
    shared_cores: int = 0
    """Cores that the verifier computes on with as many threads, and the drafter with one; 0: each has cores of its own."""
    told: bool = True
    """Whether the drafter knows that it shares them."""
    callers: int = 1
    requests: int = 1
    tokens: int = TOKENS
    """Tokens of each answer."""
    turns: Sequence[Turn] = ()
    """What is asked and answered, if the drafter is the one without a model."""

    @property
    def cores(self) -> str:
        """Where the drafter computes, in words."""
        if not self.shared_cores:
            return "its own"
        return f"one of the verifier's {self.shared_cores}, {'told' if self.told else 'not told'}"

    @property
    def source(self) -> Source:
        """The texts of all sessions."""
        if self.turns:
            return TextSource(self.turns)
        places = range(self.tokens)
        requests = [
            {PROMPT - 1 + token: [RIGHT if self.text(session, token) else WRONG] for token in places}
            for session in range(self.requests)
        ]
        return ReplaySource(Trace(HEADER, requests))

    @property
    def scenario(self) -> Scenario:
        """What the laboratory runs."""
        return Scenario(
            self.name,
            (DrafterSpec(cost=self.expansion),),
            policy=Policy.GOODPUT,
            step=STEP,
            arrivals=Closed(self.callers),
            requests=len(self.turns) or self.requests,
            shared_cores=self.shared_cores,
            priced=self.told,
        )


def _everywhere(harm: Harm) -> Iterator[Harm]:
    """On cores of its own, and on one of four and of two of its verifier, where it is told and where it is not."""
    yield harm
    for cores in (4, 2):
        for told in (True, False):
            yield replace(harm, shared_cores=cores, told=told)


CASES = (
    *_everywhere(Harm("useless", useless)),
    *_everywhere(Harm("useless, 300 ms an expansion", useless, SLOW)),
    *_everywhere(Harm("good one session in ten", one_in_ten, requests=20, tokens=SHORT)),
    *_everywhere(Harm("good one session in ten, ten at once", one_in_ten, callers=10, requests=40, tokens=SHORT)),
    *_everywhere(Harm(f"good after {UNLUCKY} tokens", good_later)),
    *_everywhere(Harm("good", good)),
    *_everywhere(Harm("n-gram", useless, LOOKUP, turns=[*map(repeating, PLACES[:8])])),
    *_everywhere(Harm("n-gram, eight at once", useless, LOOKUP, callers=8, turns=[*map(repeating, PLACES)])),
    *_everywhere(Harm("n-gram, recorded", useless, LOOKUP, turns=RECORDED)),
    *_everywhere(Harm("n-gram, recorded, eight at once", useless, LOOKUP, callers=8, turns=RECORDED)),
)
NOTES = (
    f"Virtual time, the same digits every time. A step takes {STEP.base_ms:g} ms and {STEP.per_token_us / 1e3:g} ms a token, an expansion "
    f"{QUICK.base_ms:g} ms unless the row says otherwise. One session, {TOKENS:,} tokens, unless one in ten is good "
    f"(answers of {SHORT} tokens). On shared cores an expansion runs at full speed, and the step beside it is short of its core: it takes "
    "4/3 as long on four cores, and twice as long on two.",
    "Good: the first choice is right two times in three; good one session in ten, and after the first tokens: always. Told: the drafter "
    "knows that it shares cores, and draws ahead only what pays.",
    f"n-gram: the drafter without a model, {LOOKUP.per_node_us / 1e3:g} ms a session and lookup. Answers of {ANSWER} tokens say "
    f"nothing again up to some place, at {min(PLACES)} to {max(PLACES)} tokens, and from there on {PERIOD} tokens again and again. "
    "Recorded: what SmolLM2-135M-Instruct answered to eight chat prompts.",
    f"Shares are of the tokens/s of the same requests without a drafter. Least: of any {WINDOW_S:g} s from the first token to the last. "
    "Where ten ask at once, the end is counted too, where fewer are left: with good sessions among them, it is longer.",
)


def run(context: Context) -> None:
    """Run all, print, write."""
    cases = CASES if not context.quick else [replace(CASES[0], tokens=SHORT)]
    rows: list[Row] = []
    with context.progress("harm", len(cases)) as advance:
        for case in cases:
            rows.append(measured(case))
            advance(f"{case.name}, {case.cores}")
    columns = {"drafter": "drafter", "cores": "cores"}
    for name, words in (("", ""), ("_trials", ", rest_trials")):
        columns[f"whole{name}"] = "whole run" + words
        columns[f"least{name}"] = f"least of any {WINDOW_S:g} s" + words
        columns[f"expansions{name}"] = "expansions a step" + words
    draw = partial(
        sideways,
        rows=rows,
        name="{drafter}, {cores}".format_map,
        key="least_trials",
        xlabel=columns["least_trials"] + ", share",
    )
    context.finish(
        "harm", "Tokens/s with a drafter as a share of those without", columns, rows, {}, [*NOTES, verdict(rows)], draw
    )  # fmt: skip


def measured(case: Harm) -> Row:
    """Run a case without its drafter, with it, and with it and `rest_trials`."""
    source = case.source
    base = rate(Laboratory(replace(case.scenario, drafters=(), shared_cores=0), source).run())
    row: Row = {"drafter": case.name, "cores": case.cores}
    for rests, name in ((False, ""), (True, "_trials")):
        laboratory = Laboratory(replace(case.scenario, rest_trials=rests), source)
        ledger = laboratory.run()
        row[f"whole{name}"] = rate(ledger) / base
        row[f"least{name}"] = least(committed(ledger), WINDOW_S) / base
        row[f"expansions{name}"] = sum(each.expansions for each in laboratory.drafters) / len(ledger.stepped)
    return row


def verdict(rows: Sequence[Row]) -> str:
    """Say how many rows hold to the law, without trials and with them."""
    kept = [sum(float(str(row[name])) >= LAW for row in rows) for name in ("least", "least_trials")]
    return (
        f"At least {LAW:g} in any {WINDOW_S:g} s, whatever the drafter: {kept[0]} of {len(rows)} rows have it, and {kept[1]} "
        "with `rest_trials`."
    )


def rate(ledger: Ledger) -> float:
    """Tokens per second of a whole run."""
    return sum(len(entry.tokens) for entry in ledger.entries) / ledger.busy_s


def committed(ledger: Ledger) -> list[tuple[float, int]]:
    """When every step ended, and what it committed."""
    return [(step.ended, sum(session.committed for session in step.sessions)) for step in ledger.stepped]


def least(steps: Sequence[tuple[float, int]], seconds: float) -> float:
    """Tokens per second in the poorest stretch of that length, or in all if that is shorter.

    What a step commits comes evenly between the end of the step before and its own. The first step only begins the count.

    Worked example: steps at 0, 1, 2 and 4 s that commit 9, 2, 2 and 2 tokens have 1 token per second in the poorest 2 s, from 2 to 4.
    """
    ends = np.array([end for end, _ in steps])
    total = np.cumsum([0, *(tokens for _, tokens in steps[1:])])
    length = min(seconds, ends[-1] - ends[0])
    starts = np.clip(np.concatenate([ends, ends - length]), ends[0], ends[-1] - length)
    return float(np.min(np.interp(starts + length, ends, total) - np.interp(starts, ends, total)) / length)
