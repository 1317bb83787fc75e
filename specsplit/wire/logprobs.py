"""common.proto: log-probabilities of tokens, picked ones and those of prompts."""

from __future__ import annotations

from collections.abc import Sequence

from specsplit.errors import InvalidRequest
from specsplit.v1 import common_pb2 as pb
from specsplit.values import PromptLogprobs, TokenLogprob
from specsplit.wire.limits import MAX_TOKEN_TEXT


def logprobs_to_wire(logprobs: Sequence[TokenLogprob]) -> pb.Logprobs | None:
    """None for no tokens. Texts are left out where there is none, and cut where they are too long."""
    if not logprobs:
        return None
    tops = [top for each in logprobs for top in each.top]
    return pb.Logprobs(
        picked=[each.logprob for each in logprobs],
        top_token_ids=[top.token for top in tops],
        top=[top.logprob for top in tops],
        picked_texts=_texts(logprobs),
        top_texts=_texts(tops),
    )


def _texts(logprobs: Sequence[TokenLogprob]) -> list[str]:
    texts = [each.text[:MAX_TOKEN_TEXT] for each in logprobs]
    return texts if any(texts) else []


def logprobs_from_wire(field: str, message: pb.Logprobs, tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
    """Read the log-probabilities of `tokens`; none from an absent message. Raises InvalidRequest for lists of unlike lengths."""
    count, tops = len(message.picked), len(message.top)
    if count not in (0, len(tokens)):
        raise InvalidRequest(f"{field}.picked", f"has {count} entries, with {len(tokens)} tokens")
    if tops and (count == 0 or tops % count):
        raise InvalidRequest(f"{field}.top", f"has {tops} entries, expected as many for each of {count} tokens")
    for name, entries, expected in (
        ("top_token_ids", len(message.top_token_ids), (tops,)),
        ("picked_texts", len(message.picked_texts), (0, count)),
        ("top_texts", len(message.top_texts), (0, tops)),
    ):
        if entries not in expected:
            raise InvalidRequest(f"{field}.{name}", f"has {entries} entries, expected {max(expected)}")
    return _logprobs(message, tokens) if count else ()


def _logprobs(message: pb.Logprobs, tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
    width = len(message.top) // len(tokens)
    texts = message.picked_texts or [""] * len(tokens)
    top_texts = message.top_texts or [""] * len(message.top)
    tops = [
        TokenLogprob(token, logprob, text=text)
        for token, logprob, text in zip(message.top_token_ids, message.top, top_texts, strict=True)
    ]
    return tuple(
        TokenLogprob(token, logprob, tuple(tops[i * width : (i + 1) * width]), text)
        for i, (token, logprob, text) in enumerate(zip(tokens, message.picked, texts, strict=True))
    )


def prompt_to_wire(prompt: PromptLogprobs | None) -> pb.PromptLogprobs | None:
    if prompt is None:
        return None
    logprobs = logprobs_to_wire(prompt.logprobs)
    return pb.PromptLogprobs(first=prompt.first, token_ids=prompt.tokens, logprobs=logprobs)


def prompt_from_wire(field: str, message: pb.PromptLogprobs) -> PromptLogprobs:
    """Raises InvalidRequest for no tokens, or for another number of log-probabilities than there are tokens behind others."""
    tokens = tuple(message.token_ids)
    if not tokens:
        raise InvalidRequest(f"{field}.token_ids", "is empty, expected tokens of a prompt")
    behind_others = tokens if message.first else tokens[1:]
    logprobs = logprobs_from_wire(f"{field}.logprobs", message.logprobs, behind_others)
    if len(logprobs) != len(behind_others):
        raise InvalidRequest(f"{field}.logprobs", f"is absent, with {len(behind_others)} tokens behind others")
    return PromptLogprobs(message.first, tokens, logprobs)
