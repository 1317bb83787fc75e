"""The table of the benchmark `edge`: a row for each load and party, made of what was measured by turns, and what came of the aims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from benchmarks.edge.loads import BATCH, BY_SEVERAL, HALF, HALF_BY_SEVERAL, INTERVAL_S, SATURATED, SATURATED_S, Load
from benchmarks.edge.parties import COORDINATOR, EMPTY, GATEWAY, VERIFIER
from benchmarks.plots import broken
from benchmarks.report import Row
from benchmarks.spread import spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AIM_US: Final = 60.0
"""Of the coordinator's processor time for a token, saturated."""
AIM_TOKENS_S: Final = 15_000
"""Of a core that the coordinator takes, saturated."""
AIM_RATIO: Final = 1.3
"""Of the coordinator's processor time for a token to the empty handler's, with the fewest streams."""
AIM_ADDED_MS: Final = 10.0
"""Of the 99th percentile of the delay that the coordinator adds, at half of what it passes on saturated."""
AIM_VERIFIER_US: Final = 20.0
"""Of the verifier's processor time for a token where one stream carries all sessions, 64 of them or more."""
COLUMNS: Final = {
    "streams": "streams", "offered": "offered, tokens/s", "party": "who", "tokens_s": "tokens/s", "cpu_us": "us of CPU a token",
    "core_s": "tokens/s a core", "ratio": "CPU to the empty handler's", "late": "delay p50 / p99, ms",
    "added": "added p50 / p99, ms", "a_message": "tokens a message", "verifier_us": "verifier's us",
}  # fmt: skip
NOTES: Final = (
    "A verifier without a target, whose edges are a real one's, gives every session a token at every multiple of an interval: "
    f"{INTERVAL_S * 1e3:g} ms, or {SATURATED_S * 1e3:g} ms where it says saturated: all of them at once, or, {BY_SEVERAL}, those of one "
    f"batch of {BATCH} after the other, evenly spread, as verifiers do that know nothing of one another. Half of that is half of what the "
    "same party passed on then, from as many streams. Tokens for which the verifier is itself too late are not made, so what comes can be "
    "less than what is offered.",
    "The empty handler passes the messages of the verifier's Decode on and reads none of them. The coordinator has the verifier's sessions "
    "on one stream, and so has a reader that asks the verifier itself. The gateway answers streamed completions over HTTP; its threads use "
    "any number of cores, and the verifier makes the messages of the engine protocol for it.",
    "us of CPU a token: processor time of that process alone. Tokens a second of a core follow from it. The last column is the verifier's "
    "own, while this party reads. Ratios are those of turns, the median, with quartiles in brackets; all else is the median of the turns.",
    "A delay is the time from when a step was due to when its token has been read, which is what verifier, party and reader take together. "
    "What is added is the difference to the median of a reader that asks the verifier itself: in the same turn, or, at half, at as many "
    f"streams of {INTERVAL_S * 1e3:g} ms; so the verifier's and the reader's own stragglers count too. All share the machine.",
)

Turns: TypeAlias = Sequence[Mapping[str, Any]]
"""What a party had in each turn."""
Found: TypeAlias = Mapping[Load, Mapping[str, Turns]]
"""By load, and by party."""


def rows_of(found: Found, absent: str) -> list[Row]:
    """The rows. `absent`: why there is no gateway; empty: there is one."""
    rows: list[Row] = []
    for load, by_party in found.items():
        direct = found[_reference(load)][VERIFIER]
        rows += [_row(load, name, turns, by_party[EMPTY], direct) for name, turns in by_party.items()]
        if absent:
            told: Row = {"streams": load.label, "party": f"{GATEWAY}: not measured, {absent}"}
            rows.append(dict[str, object].fromkeys(COLUMNS, "") | told)
    return rows


def _reference(load: Load) -> Load:
    """The load at which the verifier itself shows what is added to: the same, or for a half, which is another for each, 20 ms."""
    whole = Load(load.streams, INTERVAL_S)
    return {HALF: whole, HALF_BY_SEVERAL: whole.by_several(BY_SEVERAL)}.get(load.name, load)


def _row(load: Load, name: str, turns: Turns, empty: Turns, direct: Turns) -> Row:
    """Differences and ratios are those of turns: what was measured one after the other."""
    cpu, delays = median(turns, "cpu_us"), ("late_p50_ms", "late_p99_ms")
    ratios = spread([mine["cpu_us"] / max(theirs["cpu_us"], 1e-9) for mine, theirs in zip(turns, empty, strict=True)])
    added = [_added(turns, direct, key) for key in delays]
    return {
        "streams": load.label, "offered": round(median(turns, "offered")), "party": name, "tokens_s": round(median(turns, "tokens_s")),
        "cpu_us": cpu, "core_s": round(1e6 / max(cpu, 1e-9)), "ratio": ratios.told(".2f"),
        "late": " / ".join(f"{median(turns, key):.3g}" for key in delays), "added": " / ".join(f"{each:.3g}" for each in added),
        "a_message": median(turns, "tokens_a_message"), "verifier_us": median(turns, "verifier_us"),
        "ratio_median": ratios.median, "added_p99_ms": added[-1],
    }  # fmt: skip


def _added(turns: Turns, direct: Turns, key: str) -> float:
    """Milliseconds beyond the median of a reader that asks the verifier itself."""
    return spread([mine[key] - theirs["late_p50_ms"] for mine, theirs in zip(turns, direct, strict=True)]).median


def median(turns: Turns, key: str) -> float:
    """The median of a figure over the turns."""
    return spread([each[key] for each in turns]).median


def verdict(rows: Sequence[Row]) -> str:
    """The aims, and what came."""
    first, *_ = own = _of(rows, COORDINATOR)
    named = {str(row["streams"]).partition(", ")[2]: row for row in own}
    saturated, half, apart = named[SATURATED], named[HALF], named[HALF_BY_SEVERAL]
    direct = [row for row in _of(rows, VERIFIER) if "," not in str(row["streams"])][-1]
    return (
        f"The aims, and what came. Coordinator at {first['streams']} streams: at most {AIM_RATIO:g} times the empty handler's processor "
        f"time; {first['ratio_median']:.2f}. Saturated: at most {AIM_US:g} us a token, {AIM_TOKENS_S:,} tokens/s a core; "
        f"{saturated['cpu_us']:.3g}, {saturated['core_s']:,}. Half of that: at most {AIM_ADDED_MS:g} ms added at the 99th percentile; "
        f"{half['added_p99_ms']:.3g} where all tokens of an interval come at once, {apart['added_p99_ms']:.3g} from verifiers of {BATCH} "
        f"sessions. The verifier's own edge, asked directly, at {direct['streams']} streams: at most "
        f"{AIM_VERIFIER_US:g} us a token; {direct['cpu_us']:.3g}."
    )


def _of(rows: Sequence[Row], party: str) -> list[Row]:
    return [row for row in rows if row["party"] == party]


def draw(figure: Figure, rows: Sequence[Row]) -> None:
    """A panel for processor time and one for the delay that is added, with bars for each load."""
    measured = [row for row in rows if row["cpu_us"] != ""]
    shown = {"cpu_us": "us of CPU a token", "added_p99_ms": "p99 of added delay, ms"}
    axes = figure.subplots(1, len(shown), sharey=True)
    for panel, (key, label) in zip(axes, shown.items(), strict=True):
        _bars(panel, measured, key)
        panel.set_xlabel(label)
    axes[0].invert_yaxis()
    axes[1].set_xscale("log")
    axes[0].legend(fontsize=7)


def _bars(panel: Any, rows: Sequence[Row], key: str) -> None:
    """A group of bars for each load, one bar for each party; nothing is shown of what is below 0.1."""
    loads, parties = (list(dict.fromkeys(str(row[each]) for row in rows)) for each in ("streams", "party"))
    height = 0.8 / len(parties)
    for at, party in enumerate(parties):
        own = {str(row["streams"]): max(0.1, float(str(row[key]))) for row in rows if row["party"] == party}
        places = [loads.index(load) + (at - (len(parties) - 1) / 2) * height for load in own]
        panel.barh(places, list(own.values()), height, label=party)
    panel.set_yticks(range(len(loads)), list(map(broken, loads)), fontsize=7)
