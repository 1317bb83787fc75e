"""`python -m benchmarks adaptive`: phases x batches x contenders, and where the table goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.adaptive.bench import Bench, Outcome, Size
from benchmarks.adaptive.contenders import CONTROLLERS, HINDSIGHT, ORACLES, STATIC, Contender, static
from benchmarks.adaptive.phases import Phase, PhasedSource
from benchmarks.adaptive.run import Run
from benchmarks.adaptive.switching import switching
from benchmarks.adaptive.table import aims, columns, draw, rows_of, told
from benchmarks.context import Context
from benchmarks.lab.trace import Trace
from benchmarks.runner import begun, parser_of
from specsplit.cli.screen import Screen

TRACES = Path(__file__).resolve().parent.parent / "lab" / "traces"
EASY, HARD = TRACES / "eagle3.jsonl", TRACES / "eagle3-hard.jsonl"
SIZES = (Size(1, 12), Size(8, 32), Size(32, 64))
QUICK = (Size(1, 4), Size(4, 8))
SWITCHED, SWITCHED_EVERY_S = (static(3, 4), static(5, 16)), 0.25
NOTES = [
    "Virtual time, on the costs of an 8B model on one H100 (a step 5.9 ms + 21 us per token + 39 ns per token of KV, an expansion of its "
    "head 2.1 ms), no delay, calibrated drafters. The figures are those of no machine, and the same on every one: they come from traces.",
    "The traces are of the pocket models, eagle3, on held-out prompts. Easy is greedy text: the head's first choice is right 89 times in "
    "100. Hard is text at temperature 1 for which the head draws with noise of its own, and is right 20 times in 100: that stands for text "
    "that it knows little of.",
    "Callers send a request when their last one is done. Counted is until one of them has nothing more to ask. Committed tokens/s: all "
    "tokens over all time, waits and prompts included. accept_length and tokens a step are of one session, phase by phase.",
    "goodput: true probabilities: the same policy with drafters that say how often each of their tokens is right, fitted to these very "
    "traces by their probabilities, the depth and the request, in the place of what commits have shown. A policy that knows no text can "
    "hardly know more. The oracle that knows the tokens verifies no node that will not be accepted, which no probability can tell.",
    "Regret: what is missing to the best static plan of the same phase, in the phase where that is most; negative: better than all of them "
    "in every phase. The gap is that of the whole run between the best static plan and either oracle. A switch is a step under another "
    "plan than the step before; tokens/s before and after are those of the five steps on either side.",
]


def main(words: Sequence[str]) -> None:
    """Run everything, print, write."""
    options = parser_of("adaptive", __doc__, "--quick", "--docs").parse_args(words)
    context = begun(["adaptive", *words], Screen(width=220), quick=not options.docs)
    easy, hard = Trace.read(EASY), Trace.read(HARD)
    phases = (Phase("easy", easy), Phase("hard", hard), Phase("easy again", easy))
    run(context, phases, QUICK if options.quick else SIZES)


def run(context: Context, phases: Sequence[Phase], sizes: Sequence[Size]) -> None:
    """All contenders in every size."""
    source = PhasedSource(phases)
    contenders = [*STATIC, *CONTROLLERS, HINDSIGHT, *ORACLES]
    outcomes: list[Outcome] = []
    switched: list[str] = []
    with context.progress("adaptive", len(sizes) * (len(contenders) + 1)) as advance:
        for size in sizes:
            bench = Bench(source, size)
            outcomes.append(_outcome(bench, size, contenders, advance))
            switched.append(told(switching(bench, *SWITCHED, SWITCHED_EVERY_S), size.callers, SWITCHED_EVERY_S))
            advance(f"switches, batch {size.callers}")
    rows = [row for outcome in outcomes for row in rows_of(outcome, phases)]
    settings: dict[str, object] = {"requests per phase": ", ".join(str(size.requests) for size in sizes)}
    context.finish(
        "adaptive", "A load that is easy, then hard, then easy, in virtual time", columns(phases), rows, settings,
        [*aims(outcomes, phases), *switched, *NOTES], partial(draw, outcomes=outcomes, phases=phases),
    )  # fmt: skip


def _outcome(bench: Bench, size: Size, contenders: Sequence[Contender], advance: Callable[[str], None]) -> Outcome:
    runs: dict[str, Run] = {}
    for contender in contenders:
        runs[contender.name] = bench.run(contender)
        advance(f"{contender.name}, batch {size.callers}")
    return Outcome(size.callers, runs, [contender.name for contender in STATIC])
