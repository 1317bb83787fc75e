"""From committed tokens to the text that a client may see. Pure.

Tokens are taken one at a time, so where the output ends does not depend on how many a step committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from specsplit.requests import Delta
from specsplit.sessions import Tokens
from specsplit.text.detokenizer import Detokenizer
from specsplit.text.stop import StopScanner
from specsplit.values import PromptLogprobs, TokenLogprob

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

    def feed(self, step: Tokens) -> tuple[Delta, ...]:
        """What to stream for the tokens of one step; what follows a complete stop string is dropped.

        Accepted drafts and the rest are deltas of their own, so that a reader can tell their texts apart.
        """
        split = step.num_correct_drafts
        if not split:
            rest = self._take(step.tokens, step.logprobs)
            return (rest,) if rest.tokens else ()
        drafts = self._take(step.tokens[:split], step.logprobs[:split], drafts=True)
        rest = self._take(step.tokens[split:], step.logprobs[split:])
        return tuple(delta for delta in (drafts, rest) if delta.tokens)

    def read(self, prompt: PromptLogprobs) -> Delta:
        """What to stream of the prompt."""
        return Delta("", (), prompt=replace(prompt, logprobs=tuple(map(self._spelled, prompt.logprobs))))

    def _take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], *, drafts: bool = False) -> Delta:
        """Keep of these tokens what belongs to the output, one at a time."""
        text: list[str] = []
        kept: list[int] = []
        for token in tokens:
            if self._scanner.matched is not None:
                break
            kept.append(token)
            piece = self._detokenizer.feed(token)
            text.append(piece if self.kept + len(kept) <= self._min_tokens else self._scanner.feed(piece))
        self.kept += len(kept)
        spelled = tuple(map(self._spelled, logprobs[: len(kept)])) if logprobs else ()
        return Delta("".join(text), tuple(kept), len(kept) if drafts else 0, spelled)

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
