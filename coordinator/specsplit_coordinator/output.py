"""From committed tokens to the text that a client may see. Pure.

Tokens are taken one at a time, so where the output ends does not depend on how many a step committed.
"""

from __future__ import annotations

from collections.abc import Sequence

from specsplit.requests import Delta
from specsplit.text.detokenizer import Detokenizer
from specsplit.text.stop import StopScanner

UNFINISHED = "\ufffd"
"""What the detokenizer makes of bytes that never became a character."""


class Output:
    """One generation's output so far."""

    def __init__(self, detokenizer: Detokenizer, scanner: StopScanner) -> None:
        self._detokenizer = detokenizer
        self._scanner = scanner
        self._kept = 0

    @property
    def kept(self) -> int:
        """Tokens kept, up to and including the one that completed a stop string."""
        return self._kept

    @property
    def matched(self) -> str | None:
        """The stop string that ended the output, if one has."""
        return self._scanner.matched

    def feed(self, tokens: Sequence[int], num_correct_drafts: int) -> tuple[Delta, ...]:
        """What to stream for the tokens of one step; what follows a complete stop string is dropped.

        Accepted drafts and the rest are deltas of their own, so that a reader can tell their texts apart.
        """
        drafts = self._take(tokens[:num_correct_drafts])
        rest = self._take(tokens[num_correct_drafts:])
        deltas = (Delta(*drafts, num_correct_drafts=len(drafts[1])), Delta(*rest))
        return tuple(delta for delta in deltas if delta.tokens)

    def _take(self, tokens: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """Text and tokens kept, one token at a time."""
        text: list[str] = []
        kept: list[int] = []
        for token in tokens:
            if self._scanner.matched is not None:
                break
            kept.append(token)
            text.append(self._scanner.feed(self._detokenizer.feed(token)).text)
        self._kept += len(kept)
        return "".join(text), tuple(kept)

    def finish(self) -> str:
        """The text that was held back and turned out to be final; empty after a stop string.

        A character that max_tokens cut in half is left out of the text; its tokens have been streamed.
        """
        if self._scanner.matched is not None:
            return ""
        whole = self._detokenizer.flush().rstrip(UNFINISHED)
        return self._scanner.feed(whole).text + self._scanner.flush()
