"""What one choice has received so far, of however many verifiers. Pure.

When a verifier is lost, what it sent stays here: another one goes on behind it, and the same detokenizer and stop scanner with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from specsplit.errors import InvalidRequest
from specsplit.generation.burst import Told
from specsplit.generation.output import Output
from specsplit.generation.told_prompt import ToldPrompt
from specsplit.requests import Delta
from specsplit.sessions import Finished, Tokens
from specsplit.values import FinishReason, NoDrafts, PromptLogprobs, SpeculationStatistics

NOTHING: Final = SpeculationStatistics()
"""The sums of verifiers of which there was none."""


@dataclass(frozen=True)
class End:
    """Why a generation ended."""

    reason: FinishReason
    matched: str | int | None
    """The stop string or the stop token that did."""


class Answer:
    """One choice, from its first token to its end."""

    def __init__(self, output: Output, most: int, earlier: Sequence[int] = (), *, prompt: int = 0) -> None:
        """`most`: tokens that it can have. `earlier`: those that the caller has already; they are not told again.
        `prompt`: tokens of the prompt whose log-probabilities are told before it, all or 0.

        Raises InvalidRequest for more of those than there can be.
        """
        self._output = output
        self._most = most
        self._prompt = ToldPrompt(prompt)
        self.speculation = NOTHING
        """Sums over all verifiers that it had."""
        self._parts = NOTHING
        """Sums of the verifiers that it had before."""
        self._no_drafts: tuple[NoDrafts | None, int] = (None, 0)
        """Why its steps had no drafts, as its verifier has said last, and how many drafts they had had by then."""
        self._cached: int | None = None
        self.tokens: list[int] = []
        """Received, those that the caller came with included."""
        self.end: End | None = None
        """None: it goes on."""
        if earlier:
            self._begin(earlier)

    def _begin(self, earlier: Sequence[int]) -> None:
        most = self._most
        if len(earlier) <= most:  # else there is no need to read them
            self._take((Tokens(earlier, 0, self.speculation),))
            most = self._output.kept
        if len(earlier) > most:
            raise InvalidRequest("resume_from", f"has {len(earlier)} tokens, but the answer ends after {most} at most")

    @property
    def kept(self) -> int:
        """Tokens of the output."""
        return self._output.kept

    @property
    def cached_prompt_tokens(self) -> int:
        """Prompt tokens that the first verifier had already."""
        return self._cached or 0

    @property
    def no_drafts(self) -> NoDrafts | None:
        """Why its steps had no drafts; None: they had some, here or on a verifier before, or it was not told."""
        why, drafted = self._no_drafts
        return None if self._parts.drafted or self.speculation.drafted > drafted else why

    @property
    def full(self) -> bool:
        """True if it cannot have one more token."""
        return len(self.tokens) >= self._most

    @property
    def lacks_prompt(self) -> bool:
        """True if log-probabilities of its prompt are still to come."""
        return self._prompt.lacking

    def read(self, prompt: PromptLogprobs) -> Sequence[Delta]:
        """Take in log-probabilities of its prompt: what to stream. Raises Incompatible if they are not those that come next."""
        new = self._prompt.take(prompt)
        return () if new is None else (self._output.read(new),)

    def hear(self, told: Told) -> Sequence[Delta]:
        """Take in what its verifier told: what to stream. Raises Incompatible if what is told of its prompt is not what comes next."""
        if isinstance(told, PromptLogprobs):
            return self.read(told)
        return self.finished(told) if isinstance(told, Finished) else self.feed(told)

    def feed(self, steps: Sequence[Tokens]) -> Sequence[Delta]:
        """Take in steps that came at once: what to stream. Raises Incompatible if some of its prompt should have come before."""
        self._prompt.check_whole()
        self._cached = steps[0].cached_prompt_tokens if self._cached is None else self._cached
        deltas, steps = self._take(steps)
        self.speculation = self._summed(steps[-1].speculation)
        for step in steps:
            if step.no_drafts is not None:
                self._no_drafts = (step.no_drafts, self._summed(step.speculation).drafted)
        return deltas

    def finished(self, event: Finished) -> Sequence[Delta]:
        """Take in the end that its verifier tells: what to stream. Raises as `feed` does."""
        self._prompt.check_whole()
        self.speculation = self._summed(event.speculation)
        self._no_drafts = (event.no_drafts, self.speculation.drafted)
        self._cached = event.usage.cached_prompt_tokens if self._cached is None else self._cached
        return self.finish(event.reason, event.stop_token)

    def _summed(self, speculation: SpeculationStatistics) -> SpeculationStatistics:
        """The sums of all verifiers that it had."""
        return speculation if self._parts is NOTHING else SpeculationStatistics.sum([self._parts, speculation])

    def finish(self, reason: FinishReason, stop_token: int | None = None) -> Sequence[Delta]:
        """End it: the text that was held back."""
        rest = self._output.finish()
        matched = self._output.matched
        self.end = End(reason, stop_token) if matched is None else End(FinishReason.STOP, matched)
        return (Delta(rest, ()),) if rest else ()

    def moves(self) -> None:
        """What comes next is of another verifier, whose sums begin at 0."""
        self._parts = self.speculation

    def _take(self, steps: Sequence[Tokens]) -> tuple[Sequence[Delta], Sequence[Tokens]]:
        """What to stream, and the steps that are the answer's: none behind the one in which a stop string came whole."""
        before = self.kept
        deltas = self._output.feed(steps)
        if self._output.matched is not None:
            self.end = End(FinishReason.STOP, self._output.matched)
            ends = accumulate(len(step.tokens) for step in steps)
            steps = steps[: 1 + next(i for i, end in enumerate(ends) if end >= self.kept - before)]
        for step in steps:
            self.tokens += step.tokens
        return deltas, steps
