"""The table, the sentences and the figure of the benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from benchmarks.adaptive.bench import Outcome
from benchmarks.adaptive.contenders import CONTROLLERS, HINDSIGHT, ORACLES
from benchmarks.adaptive.phases import Phase
from benchmarks.adaptive.run import Run, rate_of
from benchmarks.adaptive.switching import Switching, around
from benchmarks.report import Row

POINTS = 60
"""Points of a curve."""
FIRST = 40
"""Steps after a change of text that are looked at: how soon a plan follows."""
CONTROLLED = [contender.name for contender in CONTROLLERS]
COMPARED = [*CONTROLLED, HINDSIGHT.name]
"""Who closes some of the gap to the oracles."""
CLOSED_AIM, REGRET_AIM = 0.7, 0.02


def columns(phases: Sequence[Phase]) -> dict[str, str]:
    """Key -> heading."""
    rates = {f"rate_{number}": f"{phase.name}, tokens/s" for number, phase in enumerate(phases)}
    return {
        "callers": "batch", "name": "plan", **rates, "rate": "whole run, tokens/s", "lengths": "accept_length", "tokens": "tokens a step",
        "regret": "worst regret, %", "gain": "to best static plan, %", "closed": "of the gap to oracles", "switches": "switches",
        "around": "tokens/s before and after a switch",
        "first": f"tokens/s in the first {FIRST} steps after the text changes", "best": "best static plan of",
    }  # fmt: skip


def rows_of(outcome: Outcome, phases: Sequence[Phase]) -> Iterator[Row]:
    """A row of every contender. Regret is against the best static plan of the phase, all else of the whole run."""
    numbers = range(len(phases))
    best = {phases[number].name: outcome.best(number) for number in numbers} | {"whole run": outcome.best()}
    for name, run in outcome.runs.items():
        closed = [_percent(outcome.closed(name, oracle.name)) for oracle in ORACLES if name in COMPARED]
        per_session = [run.per_session(number) for number in numbers]
        yield {
            "callers": outcome.callers, "name": name, **{f"rate_{number}": run.rate(number) for number in numbers}, "rate": run.rate(),
            "lengths": " / ".join(f"{length:.2f}" for length, _ in per_session),
            "tokens": " / ".join(f"{tokens:.1f}" for _, tokens in per_session),
            "regret": 100 * max(outcome.regret(name, number) for number in numbers),
            "gain": 100 * outcome.gain(name), "closed": " / ".join(closed),
            "switches": len(run.switches), "around": _around(run),
            "first": ", ".join(f"{run.first(number, FIRST):.0f}" for number in numbers[1:]),
            "best": ", ".join(part for part, winner in best.items() if winner == name),
        }  # fmt: skip


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.0%}"


def _around(run: Run) -> str:
    before, after = around(run)
    return f"{rate_of(before):.0f}, {rate_of(after):.0f}" if before else ""


def aims(outcomes: Sequence[Outcome], phases: Sequence[Phase]) -> Iterator[str]:
    """What is asked of the last of the controllers, and whether it is met."""
    name = CONTROLLED[-1]
    for outcome in outcomes:
        worst = max(outcome.regret(name, number) for number in range(len(phases)))
        yield (
            f"Aim: {name} never more than {REGRET_AIM:.0%} below the best static plan of a phase, batch {outcome.callers}: "
            f"{worst:.1%}, {_met(worst <= REGRET_AIM)}."
        )
    last = outcomes[-1]
    for oracle in ORACLES:
        closed = last.closed(name, oracle.name)
        yield (
            f"Aim: {name} closes {CLOSED_AIM:.0%} of the gap to {oracle.name!r}, batch {last.callers}: "
            f"{_percent(closed)}, {_met(closed is not None and closed >= CLOSED_AIM)}. "
            f"With true probabilities it closes {_percent(last.closed(HINDSIGHT.name, oracle.name))}."
        )


def _met(met: bool) -> str:
    return "met" if met else "missed"


def told(switching: Switching, callers: int, every_s: float) -> str:
    """What a switch costs, in a sentence."""
    before, after = around(switching.both)
    first, second = (
        f"{name} ({run.rate():.0f} tokens/s)" for name, run in zip(switching.names, switching.kept, strict=True)
    )
    lost = 1 - switching.both.rate() / switching.expected
    return (
        f"Switching a plan costs nothing: batch {callers}, an operator changes between {first} and {second} every {every_s:g} s, "
        f"{len(switching.both.switches)} times: {switching.both.rate():.0f} tokens/s, {lost:.1%} below the mean of the two; "
        f"in the steps just before a switch {rate_of(before):.0f}, just after it {rate_of(after):.0f}."
    )


def draw(figure: Figure, outcomes: Sequence[Outcome], phases: Sequence[Phase]) -> None:
    """Committed tokens per second along the run, batch by batch."""
    panels = figure.subplots(len(outcomes), 1, squeeze=False)[:, 0]
    for panel, outcome in zip(panels, outcomes, strict=True):
        shown = [outcome.best(), *(name for name in outcome.runs if name not in outcome.static)]
        for name in shown:
            panel.plot(*curve(outcome.runs[name]), label=name, linewidth=1)
        for number in range(1, len(phases)):
            panel.axvline(number / len(phases), color="grey", linewidth=0.5)
        panel.set_ylabel(f"batch {outcome.callers}", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.legend(fontsize=5)
    panels[0].set_title("committed tokens/s: " + ", then ".join(phase.name for phase in phases), fontsize=9)
    panels[-1].set_xlabel("share of the tokens of the run", fontsize=8)


def curve(run: Run) -> tuple[list[float], list[float]]:
    """(share of the committed tokens at the middle of every part, tokens per second in it), in parts of as many steps each."""
    size = max(1, len(run.steps) // POINTS)
    parts = [run.steps[at : at + size] for at in range(0, len(run.steps), size)]
    everything, before = sum(step.committed for step in run.steps), 0
    places: list[float] = []
    for part in parts:
        committed = sum(step.committed for step in part)
        places.append((before + committed / 2) / everything)
        before += committed
    return places, [rate_of(part) for part in parts]
