"""Log-probabilities of a prompt's own tokens, for sessions that ask: those of the target's own logits, as for tokens that it picked.

A forward has logits for `told_rows` tokens of prompts at most, and what is computed of them takes memory for `PIECE` of these at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from torch import Tensor

from specsplit.values import PromptLogprobs
from specsplit_verifier.records.step import ChunkInput, PromptPart
from specsplit_verifier.target.logprobs import logprobs_of

PIECE: Final = 64
"""Tokens that are told at once: with 20 likeliest each a message of some 20 KB."""
_LOGITS: Final = 2**26
"""Logits of prompts in one forward, at most: 256 MiB in float32."""


def told_rows(vocab_size: int) -> int:
    """Tokens of prompts for which one forward has logits, at most."""
    return max(1, _LOGITS // vocab_size)


def prompts_of(chunks: Sequence[ChunkInput], logits: Tensor) -> list[tuple[int, PromptLogprobs]]:
    """What these chunks tell of their prompts, (session, piece), in order. `logits` [n, V] are those that they ask for, end to end."""
    told: list[tuple[int, PromptLogprobs]] = []
    start = 0
    for chunk in chunks:
        if (part := chunk.told) is not None:
            stop = start + len(part.tokens)
            told += [(chunk.session, piece) for piece in _pieces(part, logits[start:stop])]
            start = stop
    return told


def _pieces(part: PromptPart, logits: Tensor) -> Iterator[PromptLogprobs]:
    for start in range(0, len(part.tokens), PIECE):
        tokens = part.tokens[start : start + PIECE]
        logprobs = logprobs_of(logits[start : start + len(tokens)], tokens, part.most)
        if start == 0 and part.beginning:
            yield PromptLogprobs(0, [*part.beginning, *tokens], logprobs)
        else:
            yield PromptLogprobs(part.first + start, tokens, logprobs)
