"""What a request is decoded with: its name, its seed and its bounds, and the checks that need none of its prompt."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from specsplit.errors import ContextExceeded
from specsplit.generation.engine_request import EngineRequest
from specsplit.identity import scope_of
from specsplit.requests import GenerateRequest
from specsplit.text.stop import StopScanner
from specsplit.values import ModelInfo, Sampling, Vocabulary
from specsplit.wire.common import check_bias, check_tokens

_SEED_BITS: Final = 53
"""Bits of a random seed: few enough for a JSON number, so that every reader can give the seed back unchanged."""


def _drawn_seed() -> int:
    return secrets.randbits(_SEED_BITS)


def _drawn_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True)
class RandomSources:
    """Where random values come from."""

    seed: Callable[[], int] = _drawn_seed
    """Returns a new seed, 64 bits unsigned."""
    request_id: Callable[[], str] = _drawn_id
    """Returns a new request id."""
    scope_key: Callable[[], bytes] = secrets.token_bytes
    """Returns a new key of scopes (`specsplit.identity.scope_of`)."""


MaxTokens = Callable[[int | None, int], int | None]
"""Given max_tokens of a request and the tokens that the context has room for, returns what it may generate; None: what fits."""


def as_asked(max_tokens: int | None, context_left: int) -> int | None:
    """A request may generate what it asks for."""
    return max_tokens


def check_request(request: GenerateRequest, vocabulary: Vocabulary) -> None:
    """Raise InvalidRequest, naming the field, for an empty stop string, or a token outside the vocabulary of the model."""
    StopScanner(request.stop)
    check_tokens("stopping.stop_token_ids", request.stopping.stop_token_ids, vocabulary.size)
    check_tokens("resume_from", request.resume_from, vocabulary.size)
    check_bias("sampling.logit_bias", request.sampling, vocabulary.size)


class Preparation:
    """Prepares the requests of one service."""

    def __init__(self, random: RandomSources) -> None:
        self._random = random
        self._scope_key = random.scope_key()

    def prepare(
        self,
        request: GenerateRequest,
        target: ModelInfo,
        tokens: Sequence[int],
        client: str = "",
        max_tokens: MaxTokens = as_asked,
    ) -> EngineRequest:
        """Give a request with these prompt tokens its name, its seed and its bounds. `client`: the name of the caller, or nothing.

        Raises ContextExceeded, with the numbers, if the context is too short for its max_tokens, InvalidRequest for an unknown adapter.
        """
        asked, context_left = request.stopping.max_tokens, target.max_context - len(tokens)
        _check_context(asked, len(tokens), target.max_context)
        return EngineRequest(
            request=replace(request, request_id=request.request_id or self._random.request_id()),
            model=target.model,
            tokens=tuple(tokens),
            sampling=self._seeded(request),
            stopping=replace(request.stopping, max_tokens=max_tokens(asked, context_left)),
            context_left=context_left,
            scope=scope_of(client, self._scope_key),
            adapter=target.adapter(request.adapter),
        )

    def _seeded(self, request: GenerateRequest) -> Sampling:
        if request.seeded:
            return request.sampling
        return replace(request.sampling, seed=0 if request.sampling.greedy else self._random.seed())


def _check_context(max_tokens: int | None, prompt_tokens: int, max_context: int) -> None:
    """Raise ContextExceeded, with the numbers, if the context is too short for max_tokens. No verifier has to be asked for that."""
    context_left = max_context - prompt_tokens
    if max_tokens is not None and max_tokens > context_left:
        raise ContextExceeded(
            "max_tokens",
            f"is {max_tokens}, which with {prompt_tokens} prompt tokens exceeds the context of {max_context}; at most {context_left} fit",
        )
