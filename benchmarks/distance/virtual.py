"""How far a drafter may be from its verifier: tokens/s under `goodput` as a share of those without a drafter, in virtual time.

Drafters are made up, and replayed: their first choice is right so often, their second in half of the other cases.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from matplotlib.figure import Figure

from benchmarks.context import Context
from benchmarks.harm import HEADER, LAW, WINDOW_S, committed, least, rate
from benchmarks.lab.arrivals import Closed
from benchmarks.lab.cost import ExpansionCurve, StepCurve
from benchmarks.lab.laboratory import Laboratory
from benchmarks.lab.replay import ReplaySource
from benchmarks.lab.scenario import DrafterSpec, Policy, Scenario
from benchmarks.lab.trace import Level, Trace
from benchmarks.lab.transport import DIRECT, Link
from benchmarks.plots import lines
from benchmarks.report import Row

STEPS_MS = (10.0, 30.0, 100.0)
"""A step of a small, a middling and a large target; a token in it adds a hundredth."""
EXPANSIONS_MS = (1.0, 5.0, 20.0)
ACCEPTANCES = (0.5, 0.7, 0.9)
"""How often the first choice is right."""
DELAYS_MS = (0.0, 5.0, 10.0, 20.0, 40.0, 80.0)
"""In one direction."""
PROMPT, TOKENS = 16, 400
SECONDS_OF_A_RUN = 40.0
"""What a run without a drafter takes, or one answer if that is more, so that trials and rests settle."""
WORTH = 1.05
"""The share from which on a drafter counts as worth having."""
PROBABILITIES = (0.6, 0.2, 0.1, 0.05)
"""What every drafter says of its children, right or wrong; they are calibrated by what is accepted."""


@dataclass(frozen=True)
class Place:
    """A target, a drafter and who asks; the delay between the two is not said."""

    step_ms: float
    expansion_ms: float
    acceptance: float
    callers: int = 1

    @property
    def requests(self) -> int:
        """Answers in a run, the same number for each caller."""
        return self.callers * max(1, round(SECONDS_OF_A_RUN / (self.step_ms * TOKENS / 1e3)))

    @property
    def trace(self) -> Trace:
        """The texts, the same for every delay."""
        drawn = random.Random(f"{self.acceptance}")
        places = range(PROMPT - 1, PROMPT - 1 + TOKENS)
        requests = [{place: [level(drawn, self.acceptance)] for place in places} for _ in range(self.requests)]
        return Trace(HEADER, requests)

    def scenario(self, link: Link = DIRECT) -> Scenario:
        """What the laboratory runs with a drafter behind such a link."""
        return Scenario(
            f"{self}",
            (DrafterSpec(cost=ExpansionCurve(self.expansion_ms)),),
            policy=Policy.GOODPUT,
            step=StepCurve(self.step_ms, per_token_us=10 * self.step_ms),
            link=link,
            arrivals=Closed(self.callers),
            requests=self.requests,
            rest_trials=True,
        )


PLACES = (
    *(Place(*each) for each in product(STEPS_MS, EXPANSIONS_MS, ACCEPTANCES)),
    *(Place(step, 5.0, 0.7, callers=8) for step in STEPS_MS),
)


def level(drawn: random.Random, acceptance: float) -> Level:
    """Draw which of a drafter's choices is right, if any."""
    luck = drawn.random()
    rank = 0 if luck < acceptance else 1 if luck < (1 + acceptance) / 2 else -1
    return Level(rank, PROBABILITIES)


def measured(place: Place, delays_ms: Sequence[float]) -> Row:
    """Run a place without a drafter, and with one behind every delay."""
    source = ReplaySource(place.trace)
    base = rate(Laboratory(replace(place.scenario(), drafters=()), source).run())
    row: Row = {**vars(place)}
    shares = dict[float, float]()
    poorest = math.inf
    for delay_ms in delays_ms:
        ledger = Laboratory(place.scenario(Link(delay_ms)), source).run()
        shares[delay_ms] = rate(ledger) / base
        poorest = min(poorest, least(committed(ledger), WINDOW_S) / base)
        row[_key(delay_ms)] = shares[delay_ms]
    return row | {"least": poorest, "line_ms": line(shares)}


def line(shares: Mapping[float, float]) -> float | str:
    """The longest delay up to which a drafter is worth having at every one; a word if it is at none.

    Worked example: shares of 1.4, 1.1, 1.0 and 1.06 at 0, 5, 10 and 20 ms have their line at 5 ms.
    """
    found: float | str = "none"
    for delay_ms in sorted(shares):
        if shares[delay_ms] < WORTH:
            break
        found = delay_ms
    return found


def run(context: Context) -> None:
    """Run all, print, write."""
    places, delays = PLACES, DELAYS_MS
    if context.quick:
        places, delays = [Place(100.0, 5.0, 0.7)], (0.0, 80.0)
    rows: list[Row] = []
    with context.progress("distance", len(places)) as advance:
        for place in places:
            rows.append(measured(place, delays))
            advance(f"step {place.step_ms:g} ms, expansion {place.expansion_ms:g} ms, {place.acceptance:g} right")
    columns = {"step_ms": "step, ms", "expansion_ms": "expansion, ms", "acceptance": "right", "callers": "callers"}
    columns |= {_key(delay): f"{delay:g} ms away" for delay in delays}
    columns |= {"least": f"least of any {WINDOW_S:g} s", "line_ms": "worth having up to, ms"}
    context.finish(
        "distance",
        "Tokens/s with a drafter far away as a share of those without",
        columns,
        rows,
        {},
        [*NOTES, verdict(rows, delays)],
        lambda figure: draw(figure, rows, delays),
    )


NOTES = (
    "Virtual time, the same digits every time. `goodput` with `rest_trials`, which are the defaults, decides whether drafts are waited "
    f"for, verified or not drafted at all. A token of a step adds a hundredth of it. Answers of {TOKENS} tokens.",
    "Right: how often the drafter's first choice is right; its second is in half of the other cases. Away: the delay in one direction.",
    f"Worth having: at least {WORTH:g} of the tokens/s without a drafter, at this and at every shorter delay. Least: the poorest stretch "
    "of all delays.",
)


def verdict(rows: Sequence[Row], delays_ms: Sequence[float]) -> str:
    """Say in how many cells a drafter costs something."""
    cells = [float(str(row[_key(delay)])) for row in rows for delay in delays_ms]
    kept = sum(cell >= LAW for cell in cells)
    poor = sum(float(str(row["least"])) >= LAW for row in rows)
    return (
        f"It never costs: {kept} of {len(cells)} cells have {LAW:g} of no drafter's tokens/s or more (the least {min(cells):.3f}), and "
        f"{poor} of {len(rows)} rows in any {WINDOW_S:g} s too."
    )


def draw(figure: Figure, rows: Sequence[Row], delays_ms: Sequence[float]) -> None:
    """A panel for every step, with a line for every acceptance, of one caller and the middle expansion."""
    middle = sorted({float(str(row["expansion_ms"])) for row in rows})
    chosen = [row for row in rows if row["callers"] == 1 and row["expansion_ms"] == middle[len(middle) // 2]]
    steps = [*dict.fromkeys(row["step_ms"] for row in chosen)]
    for panel, step in zip(figure.subplots(1, len(steps), sharey=True, squeeze=False)[0], steps, strict=True):
        here = [
            {"right": row["acceptance"], "delay_ms": delay, "share": row[_key(delay)]}
            for row in chosen
            if row["step_ms"] == step
            for delay in delays_ms
        ]
        lines(panel, here, lambda row: f"{row['right']:g} right", "delay_ms", "share")
        panel.axhline(1.0, linewidth=0.5, color="black")
        panel.set_title(f"step {step:g} ms")
        panel.set_xlabel("delay, ms")
    figure.axes[0].set_ylabel("share of no drafter's tokens/s")
    figure.axes[0].legend(fontsize=7)


def _key(delay_ms: float) -> str:
    return f"at_{delay_ms:g}"
