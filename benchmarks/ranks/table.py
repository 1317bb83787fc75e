"""What the measurements come to: rows, sentences and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from benchmarks.plots import lines
from benchmarks.ranks.bench import Cell, Parked, Turns, Wakes
from benchmarks.ranks.weights import Weights
from benchmarks.report import Row
from benchmarks.spread import percentile, spread

TURNS = {
    "way": "verifiers", "drafter": "drafter", "callers": "requests at once", "busy": "busy ranks", "turns_per_s": "turns/s",
    "turns_spread": "quartiles", "idle_share": "idle share", "imbalance": "imbalance", "forward_ms": "forward, ms",
    "tokens_per_s": "tokens/s", "tokens_spread": "quartiles",
}  # fmt: skip
WAKES = {
    "what": "request of one token, to", "p50": "p50, ms", "p90": "p90, ms", "most": "most, ms", "times": "times",
}  # fmt: skip


def turn_row(cell: Cell, turns: Turns) -> Row:
    """One row of the table of turns."""
    rate, tokens, made = spread(turns.turns_per_s), spread(turns.tokens_per_s), turns.counters
    return {
        "way": cell.way, "drafter": cell.drafter, "callers": cell.callers, "busy": spread(turns.busy).median,
        "turns_per_s": rate.median, "turns_spread": rate.quartiles(), "turns_rate": rate,
        "idle_share": made.idle_share, "imbalance": made.imbalance / made.turns if made.turns else 1.0,
        "forward_ms": made.forward_s * 1e3 / max(1.0, made.steps),
        "tokens_per_s": tokens.median, "tokens_spread": tokens.quartiles(), "tokens_rate": tokens,
    }  # fmt: skip


def wake_rows(wakes: Mapping[str, Wakes]) -> list[Row]:
    """The table of first steps."""
    rows: list[Row] = []
    for way, each in wakes.items():
        rows += [_row(f"{way}, {state}", values) for state, values in each.by_state.items()]
    return rows


def _row(what: str, values: Sequence[float]) -> Row:
    return {
        "what": what, "p50": percentile(values, 50), "p90": percentile(values, 90), "most": max(values, default=0.0),
        "times": len(values), "all_ms": list(values),
    }  # fmt: skip


def parked_note(parked: Mapping[str, Parked]) -> str:
    """What verifiers use that do nothing."""
    told = [
        f"{way} {spread(each.cpu_ms_per_s).median:.2f} ms of processor time a second "
        f"({min(each.cpu_ms_per_s):.2f}..{max(each.cpu_ms_per_s):.2f}) and {spread(each.switches_per_s).median:.0f} times that a thread "
        "wakes up"
        for way, each in parked.items()
    ]
    return f"With nothing to do a verifier uses, heartbeats included: {'; '.join(told)}."


def weights_note(by_size: Mapping[int, Weights]) -> str:
    """How the weights of a rank fall with the size of its group."""
    whole = by_size[min(by_size)]
    told = [
        f"N = {size}: {each.sharded:,} bytes, {each.sharded / whole.sharded:.3g} of N = 1 (all weights {each.sharded + each.whole:,})"
        for size, each in by_size.items()
    ]
    return f"Weights of the sharded part that a rank holds, by size of its group. {'; '.join(told)}."


def draw_turns(figure: Figure, rows: Sequence[Row]) -> None:
    """Turns and tokens per second, by requests at once."""
    axes = figure.subplots(1, 2)
    for panel, (key, unit) in zip(axes, (("turns_per_s", "turns/s"), ("tokens_per_s", "tokens/s")), strict=True):
        lines(panel, rows, lambda row: f"{row['way']}, {row['drafter']}", "callers", key)
        panel.set_xlabel("requests at once")
        panel.set_ylabel(unit)
        panel.set_ylim(bottom=0)
    axes[0].legend(fontsize=7)


def draw_wakes(figure: Figure, wakes: Mapping[str, Wakes]) -> None:
    """How long first tokens took, each by itself."""
    panel = figure.subplots()
    told = {f"{way},\n{state}": values for way, each in wakes.items() for state, values in each.by_state.items()}
    panel.boxplot(list(told.values()), orientation="horizontal")
    panel.set_yticks(range(1, len(told) + 1), list(told), fontsize=7)
    panel.set_xlabel("ms")
