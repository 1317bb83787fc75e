"""How one choice has to end, and what came of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from benchmarks.fire.mix import Asked
from benchmarks.known import Known
from specsplit.requests import Delta, Done

_CUT: Final = 4
"""Characters of a stop string that is cut out of a text."""
_UNFINISHED: Final = "\ufffd"
"""What stands for bytes that are no character."""


@dataclass(frozen=True, slots=True)
class Ends:
    """One choice as it has to end."""

    tokens: tuple[int, ...]
    text: str
    stop: str | None
    """The stop string before which it ends; None: it has the tokens that were asked for."""


def stops(known: Known, asked: Asked) -> tuple[str, ...]:
    """The stop strings to send: those that the text does not have, and the one that is cut out of it."""
    if asked.cut is None:
        return asked.stop
    text = known.readings[0][asked.new]
    at = int(asked.cut * len(text))
    cut = text[at : at + _CUT]
    return (*asked.stop, cut) if cut and _UNFINISHED not in cut else asked.stop


def ends(known: Known, asked: Asked) -> list[Ends]:
    """Every choice as it has to end. A stop string ends it with the token that completes the string; the text ends before it."""
    return [_end(known, asked.new, stops(known, asked), index) for index in range(asked.n)]


def _end(known: Known, new: int, stop: tuple[str, ...], index: int) -> Ends:
    tokens, readings = known.choice(index)[:new], known.readings[index][: new + 1]
    for count, text in enumerate(readings):
        for each in stop:
            if each in text:
                return Ends(tokens[:count], text[: text.index(each)], each)
    return Ends(tokens, readings[-1].rstrip(_UNFINISHED), None)


@dataclass
class Answer:
    """One choice, over all times that it was asked for."""

    ends: Ends
    logprobs: int | None = None
    """The option of the request."""
    tokens: list[int] = field(default_factory=list[int])
    """Those of the answer so far."""
    text: str = ""
    """What came since it was asked for last."""
    resumed: bool = False
    """True if only the rest was asked for."""
    done: list[Done] = field(default_factory=list[Done])
    odd: list[str] = field(default_factory=list[str])
    """A sentence for every delta whose log-probabilities are not those of its tokens."""

    def again(self) -> None:
        """The rest is asked for."""
        self.text, self.resumed = "", True
        self.done.clear()

    def take(self, delta: Delta) -> None:
        """Some more of it."""
        self.tokens += delta.tokens
        self.text += delta.text
        wanted = () if self.logprobs is None else delta.tokens
        told = tuple(each.token for each in delta.logprobs)
        if told != wanted or any(len(each.top) != self.logprobs for each in delta.logprobs):
            shown = [(each.token, len(each.top)) for each in delta.logprobs]
            self.odd.append(f"log-probabilities of {shown} with logprobs={self.logprobs}, for {delta.tokens}")

    @property
    def strays(self) -> str:
        """What is wrong with what came, whether there is more to come or not; empty: nothing."""
        if tuple(self.tokens) != self.ends.tokens[: len(self.tokens)]:
            return self._tokens_told
        return "; ".join(self.odd)

    @property
    def wrong(self) -> str:
        """What is wrong now that it is over; empty: nothing."""
        if tuple(self.tokens) != self.ends.tokens or self.odd:
            return self.strays or self._tokens_told
        matched = [each.matched_stop for each in self.done]
        if matched != [self.ends.stop]:
            return f"ends at {matched} in the place of one at {self.ends.stop!r}"
        right = self.ends.text.endswith(self.text) if self.resumed else self.ends.text == self.text
        return "" if right else f"text {self.text!r} in the place of {self.ends.text!r}"

    @property
    def _tokens_told(self) -> str:
        return f"{self.tokens} in the place of {self.ends.tokens}"
