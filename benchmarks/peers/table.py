"""What peers wrote and how long it took, as rows and as sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from benchmarks.peers.peer import Peer, Timed
from benchmarks.report import Row
from benchmarks.spread import spread

SINGLE, EIGHT, PREFILL = "1 at a time", "8 at once", "prefill"
LOADS: Final = (SINGLE, EIGHT, PREFILL)
COLUMNS = {
    "peer": "engine", SINGLE: "1 at a time, tokens/s", f"{SINGLE} of": "of vLLM", EIGHT: "8 at once, tokens/s", f"{EIGHT} of": "of vLLM",
    PREFILL: "prefill, tokens/s", f"{PREFILL} of": "of vLLM", "texts": "texts as above", "resident": "memory, GB", "load": "start, s",
}  # fmt: skip
NOTHING: Final = "-"


@dataclass
class Results:
    """What one peer gave."""

    peer: Peer
    load_s: float
    resident_gb: float = 0.0
    rates: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Tokens per second of each round, by load."""
    texts: list[list[list[int]]] = field(default_factory=list[list[list[int]]])
    """All texts of each run that wrote some."""
    cannot: dict[str, str] = field(default_factory=dict[str, str])

    def take(self, load: str, tokens: int, timed: Timed | str, *, counts: bool) -> None:
        """One run under a load, in which this many tokens were read or written; a run that warms up shows only what it wrote."""
        if isinstance(timed, str):
            self.cannot[load] = timed
            return
        if load != PREFILL:
            self.texts.append(timed.texts)
        if counts:
            self.rates.setdefault(load, []).append(tokens / timed.seconds)


def rows_of(results: Sequence[Results], own: Sequence[Sequence[int]], pairs: Mapping[str, str]) -> list[Row]:
    """A row for each peer. own: the texts that the first one wrote. pairs: the name of the peer that another is compared with."""
    by_name = {each.peer.name: each for each in results}
    rows: list[Row] = []
    for each in results:
        row: Row = {
            "peer": each.peer.name,
            "resident": each.resident_gb,
            "load": each.load_s,
            "texts": agreement(each, own),
        }
        for load in LOADS:
            row |= _cells(load, each.rates.get(load, []), by_name.get(pairs.get(each.peer.name, "")))
        rows.append(row)
    return rows


def _cells(load: str, rates: Sequence[float], other: Results | None) -> Row:
    if not rates:
        return {load: NOTHING, f"{load} of": NOTHING, f"{load} median": 0.0}
    found, theirs = spread(rates), [] if other is None else other.rates.get(load, [])
    shares = [mine / its for mine, its in zip(rates, theirs, strict=False)]
    ratio = spread(shares).told(".2f") if shares else NOTHING
    return {load: found.told(".3g"), f"{load} of": ratio, f"{load} median": found.median}


def agreement(results: Results, own: Sequence[Sequence[int]]) -> str:
    """How many of the texts are the expected ones in every run; of a peer that rounds its weights also how far they are."""
    same = [index for index, text in enumerate(own) if all(texts[index] == text for texts in results.texts)]
    told = f"{len(same)} of {len(own)}"
    if results.peer.exact or not results.texts:
        return told
    shares = [beginning(texts[index], text) / len(text) for texts in results.texts for index, text in enumerate(own)]
    return f"{told}, {100 * spread(shares).median:.0f} % of a text"


def beginning(text: Sequence[int], other: Sequence[int]) -> int:
    """Tokens in front that are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))


def disagreements(results: Sequence[Results], own: Sequence[Sequence[int]]) -> list[str]:
    """A sentence for each peer of exact weights that wrote another text."""
    told: list[str] = []
    for each in results:
        wrong = sorted({index for texts in each.texts for index, text in enumerate(texts) if text != own[index]})
        if each.peer.exact and wrong:
            told.append(f"{each.peer.name} wrote other texts to prompts {', '.join(map(str, wrong))}.")
    return told
