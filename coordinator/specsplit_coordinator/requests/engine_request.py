"""A request with everything decided that does not depend on where it runs. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from specsplit.requests import GenerateRequest, choice_seed
from specsplit.sessions import DecodeRequest
from specsplit.values import DrafterKind, Endpoint, Sampling, Stopping
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.requests.answer import Answer
from specsplit_coordinator.requests.fair_queue import QueueOwner


@dataclass(frozen=True)
class EngineRequest:
    """Model, tokens, seed and bounds of one generation; of its choices those of choice 0."""

    request: GenerateRequest
    model: str
    tokens: tuple[int, ...]
    """Tokens of the prompt."""
    sampling: Sampling
    stopping: Stopping
    context_left: int
    """Tokens that the context has room for behind the prompt."""
    owner: QueueOwner
    """What stands for the request in the queue."""
    scope: bytes = b""
    """Whose its sessions are, for drafters; empty: like no other session."""

    @property
    def most(self) -> int:
        """Tokens that its answer can have, at most."""
        return (
            self.context_left if self.stopping.max_tokens is None else min(self.context_left, self.stopping.max_tokens)
        )

    def choice(self, index: int) -> EngineRequest:
        """Return the request as one of its choices is decoded: with the seed of that choice."""
        return replace(self, sampling=replace(self.sampling, seed=choice_seed(self.sampling.seed, index)))

    def placement(self, answer: Answer, failed_on: Collection[str] = ()) -> PlacementRequest:
        """Make the placement request for what is left of its answer; verifiers in `failed_on` are the last choice."""
        most = self.stopping.max_tokens
        left = None if most is None else most - len(answer.tokens)
        return PlacementRequest((*self.tokens, *answer.tokens), left, self.request.plan.num_draft_tokens, failed_on)

    def session(self, answer: Answer, drafter: Endpoint | None) -> DecodeRequest:
        """Make the request to a verifier to decode what is left of its answer."""
        request = self.request
        return DecodeRequest(
            request_id=request.request_id,
            tokens=(*self.tokens, *answer.tokens),
            sampling=self.sampling,
            stopping=self.stopping,
            plan=request.plan,
            drafter=drafter,
            logprobs=request.logprobs,
            any_drafter=drafter is None if request.drafter == DrafterKind.NGRAM else request.drafter is None,
            committed=len(answer.tokens),
            scope=self.scope,
            stream_interval=1 if request.stop else request.stream_interval,
            constraint=request.constraint,
        )
