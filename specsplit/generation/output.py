"""From committed tokens to the text that a client may see. Pure.

Tokens that come at once are made text at once. Where the output ends does not depend on how many they are: those among which a stop
string comes whole are looked at again one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter

from specsplit.requests import Delta
from specsplit.sessions import Tokens
from specsplit.text.detokenizer import Detokenizer
from specsplit.text.stop import StopScanner
from specsplit.values import PromptLogprobs, TokenLogprob

_correct_drafts = attrgetter("num_correct_drafts")
UNFINISHED = "\ufffd"
"""What the detokenizer makes of bytes that never became a character."""


class Output:
    """The output of one generation so far."""

    def __init__(
        self, detokenizer: Detokenizer, scanner: StopScanner, piece: Callable[[int], str], min_tokens: int = 0
    ) -> None:
        """`piece` gives the text of a token by itself, for people to read. Of the first `min_tokens` tokens no text is scanned."""
        self._detokenizer = detokenizer
        self._scanner = scanner
        self._piece = piece
        self._min_tokens = min_tokens
        self.kept = 0
        """Tokens kept, up to and including the one that completed a stop string."""

    @property
    def matched(self) -> str | None:
        """The stop string that ended the output, if one has."""
        return self._scanner.matched

    def feed(self, steps: Sequence[Tokens]) -> Sequence[Delta]:
        """What to stream for the tokens of steps that came at once; what follows a complete stop string is dropped.

        Accepted drafts and the rest are deltas of their own, so that a reader can tell their texts apart.
        """
        drafted = any(map(_correct_drafts, steps))
        deltas = chain.from_iterable(map(self._apart, steps)) if drafted else (self._joint(steps),)
        return [delta for delta in deltas if delta.tokens]

    def _joint(self, steps: Sequence[Tokens]) -> Delta:
        """One delta of steps without accepted drafts."""
        if len(steps) == 1:
            return self._take(steps[0].tokens, steps[0].logprobs)
        tokens = chain.from_iterable(step.tokens for step in steps)
        return self._take(tuple(tokens), tuple(chain.from_iterable(step.logprobs for step in steps)))

    def _apart(self, step: Tokens) -> tuple[Delta, Delta]:
        split = step.num_correct_drafts
        drafts = self._take(step.tokens[:split], step.logprobs[:split], drafts=True)
        return drafts, self._take(step.tokens[split:], step.logprobs[split:])

    def read(self, prompt: PromptLogprobs) -> Delta:
        """What to stream of the prompt."""
        return Delta("", (), prompt=replace(prompt, logprobs=tuple(map(self._spelled, prompt.logprobs))))

    def _take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], *, drafts: bool = False) -> Delta:
        """Keep of these tokens what belongs to the output."""
        if self._scanner.matched is not None:
            return Delta("", ())
        text, kept = self._text_of(tokens)
        self.kept += kept
        spelled = tuple(map(self._spelled, logprobs[:kept])) if logprobs else ()
        return Delta(text, tuple(tokens[:kept]), kept if drafts else 0, spelled)

    def _text_of(self, tokens: Sequence[int]) -> tuple[str, int]:
        """Their text as far as it is final, and how many of them belong to the output."""
        unscanned = self._min_tokens - self.kept
        if unscanned <= 0:
            return self._scanned(tokens)
        text = self._detokenizer.feed(tokens[:unscanned])
        rest, kept = self._scanned(tokens[unscanned:])
        return text + rest, min(unscanned, len(tokens)) + kept

    def _scanned(self, tokens: Sequence[int]) -> tuple[str, int]:
        """Make text of tokens in which stop strings are looked for -> it, and how many of the tokens are kept."""
        before = self._detokenizer.copy() if self._scanner.seeks and len(tokens) > 1 else None
        piece = self._detokenizer.feed(tokens)
        if before is None or not self._scanner.finds(piece):
            return self._scanner.feed(piece), len(tokens)
        self._detokenizer, text = before, ""
        for kept, token in enumerate(tokens, 1):
            text += self._scanner.feed(before.feed((token,)))
            if self._scanner.matched is not None:
                return text, kept
        raise AssertionError("a stop string was found, and is not there")

    def _spelled(self, logprob: TokenLogprob) -> TokenLogprob:
        """Return the same log-probabilities with their texts."""
        return replace(logprob, text=self._piece(logprob.token), top=tuple(map(self._spelled, logprob.top)))

    def finish(self) -> str:
        """The text that was held back and turned out to be final; empty after a stop string.

        A character that max_tokens cut in half is left out of the text; its tokens have been streamed.
        """
        if self._scanner.matched is not None:
            return ""
        whole = self._detokenizer.flush().rstrip(UNFINISHED)
        return self._scanner.feed(whole) + self._scanner.flush()
