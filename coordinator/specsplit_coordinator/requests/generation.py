"""The life of one request, from prompt to last message. Works on values; the servicer is its edge.

1. check, quota  2. permit  3. name and seed  4. prompt to tokens, and the answer as far as the caller has it
of every choice by itself (`run`): 5. wait for a verifier  6. choose a drafter  7. decode  8. tokens to text
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from specsplit.errors import ContextExceeded, SpecsplitError
from specsplit.identity import scope_of
from specsplit.requests import Delta, GenerateEvent, GenerateRequest
from specsplit.text.stop import StopScanner
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import ModelInfo, Sampling, Stopping
from specsplit.wire.common import check_bias, check_tokens
from specsplit_coordinator.cluster.placement import check_wish, choose_drafter
from specsplit_coordinator.requests.answer import Answer
from specsplit_coordinator.requests.caps import Caps
from specsplit_coordinator.requests.engine_request import EngineRequest
from specsplit_coordinator.requests.fair_queue import QueueOwner
from specsplit_coordinator.requests.output import Output
from specsplit_coordinator.requests.prompt import PromptReader
from specsplit_coordinator.requests.quotas import Quotas
from specsplit_coordinator.requests.request_log import (
    LoggedChoice,
    LoggedRequest,
    Remaining,
    RequestDetails,
    RequestLog,
)
from specsplit_coordinator.requests.run import ClusterAccess, Run

SHORT_ANSWER: Final = 256
"""An answer to resume of up to so many tokens is detokenized on the event loop, which takes some milliseconds."""


@dataclass(frozen=True)
class RandomSources:
    """Where random values come from."""

    seed: Callable[[], int]
    """Returns a new seed, 64 bits unsigned."""
    request_id: Callable[[], str]
    """Returns a new request id."""
    scope_key: Callable[[], bytes] = secrets.token_bytes
    """Returns a new key of scopes (`specsplit.identity.scope_of`)."""


class Generator:
    """Runs requests, from the check at a glance to the last message."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        cluster: ClusterAccess,
        random: RandomSources,
        requests: RequestLog,
        caps: Caps,
        quotas: Quotas,
    ) -> None:
        self._tokenizer = tokenizer
        self._reader = PromptReader(tokenizer)
        self._cluster = cluster
        self._random = random
        self._scope_key = random.scope_key()
        self._requests = requests
        self._caps = caps
        self._quotas = quotas

    async def generate(
        self, request: GenerateRequest, remaining_s: Remaining, client: str = ""
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Yield the deltas of all choices as they come, and a Done behind those of each. The caller has to close the generator.

        `client` is the name that quotas and the queue know the caller by.

        Raises SpecsplitError; an error of one choice ends the others.
        """
        with self._requests.track(request, remaining_s, client) as logged:
            owner = QueueOwner(client, request.priority)
            target = self._check(request)
            with self._quotas.request(client, request.n) as use:
                async with aclosing(self._run(request, remaining_s, logged, owner, target, use)) as events:
                    async for event in events:
                        use(len(event.tokens) if isinstance(event, Delta) else 0)
                        yield event

    def model(self) -> ModelInfo:
        """The model that the verifiers serve, and whether it takes conversations. Raises Unavailable if there is no verifier."""
        return replace(self._cluster.registry.model(), takes_chat=self._tokenizer.takes_chat)

    def refused(self, error: SpecsplitError) -> None:
        """Log a request that could not be read."""
        self._requests.refused(error)

    def close(self) -> None:
        """End the threads that read prompts; no more requests may come."""
        self._reader.close()

    async def _run(
        self,
        request: GenerateRequest,
        remaining_s: Remaining,
        logged: LoggedRequest,
        owner: QueueOwner,
        target: ModelInfo,
        use: Callable[[int], None],
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Prepare the request, and run its choices.

        Tokens of its prompt, and of the answer that it resumes, count as used, unless it never gets to a verifier.
        """
        with self._permit(logged, owner):
            prepared = await self._prepare(request, target, logged, owner)
            runs = [await self._begin(prepared.choice(each.index), remaining_s, each) for each in logged.choices]
        use(read := logged.details.prompt_tokens + len(request.resume_from))
        choices = [run.events() for run in runs]
        try:
            for run in runs:
                run.enqueue()
            async with aclosing(merged(choices) if len(choices) > 1 else choices[0]) as events:
                async for event in events:
                    yield event
        finally:
            for run in runs:
                run.cancel()
            if logged.verifier is None:
                use(-read)

    async def _begin(self, prepared: EngineRequest, remaining_s: Remaining, logged: LoggedChoice) -> Run:
        return Run(self._cluster, prepared, await self._answer(prepared), remaining_s, logged)

    async def _answer(self, prepared: EngineRequest) -> Answer:
        """Begin an answer with the tokens that the caller has already. Raises InvalidRequest if the answer cannot begin so."""
        request, tokenizer = prepared.request, self._tokenizer
        scanner = StopScanner(request.stop, include=request.include_stop_str_in_output)
        output = Output(tokenizer.detokenizer(prepared.tokens), scanner, tokenizer.piece, request.stopping.min_tokens)
        begin = partial(Answer, output, prepared.most, request.resume_from)
        return begin() if len(request.resume_from) <= SHORT_ANSWER else await self._reader.aside(begin)

    def _check(self, request: GenerateRequest) -> ModelInfo:
        """Check what takes no time, before the request waits for anything -> the model that the verifiers serve."""
        check_wish(request.drafter)
        self._caps.check(request)
        StopScanner(request.stop)  # raises for a stop string that cannot be
        vocabulary = self._tokenizer.vocabulary
        check_tokens("stopping.stop_token_ids", request.stopping.stop_token_ids, vocabulary.size)
        check_tokens("resume_from", request.resume_from, vocabulary.size)
        check_bias("sampling.logit_bias", request.sampling, vocabulary.size)
        target = self._cluster.registry.model()
        registry = self._cluster.registry
        looks_up = any(verifier.looks_up for verifier in registry.verifiers)
        choose_drafter(registry.drafters, request.drafter, vocabulary, looks_up=looks_up)
        return target

    def _permit(self, logged: LoggedRequest, owner: QueueOwner) -> AbstractContextManager[None]:
        try:
            return self._cluster.admission.permit(logged.asked.n, owner)
        except SpecsplitError:
            with logged.trace.stage("queue"):  # the span of the stage in which the request ended
                raise

    async def _prepare(
        self, request: GenerateRequest, target: ModelInfo, logged: LoggedRequest, owner: QueueOwner
    ) -> EngineRequest:
        """Give the request its id, its seed and its tokens."""
        request = replace(request, request_id=request.request_id or self._random.request_id())
        with logged.trace.stage("tokenize") as note:
            tokens = await self._reader.read(request.prompt, target.max_context)
            note("tokens", len(tokens))
        stopping, context_left = self._stopping(request, len(tokens), target), target.max_context - len(tokens)
        scope = scope_of(owner.client, self._scope_key)
        prepared = EngineRequest(
            request, target.model, tokens, self._seeded(request), stopping, context_left, owner, scope
        )
        logged.details = RequestDetails(request.request_id, prepared.model, prepared.sampling.seed, len(tokens))
        return prepared

    def _seeded(self, request: GenerateRequest) -> Sampling:
        if request.seeded:
            return request.sampling
        return replace(request.sampling, seed=0 if request.sampling.greedy else self._random.seed())

    def _stopping(self, request: GenerateRequest, prompt_tokens: int, target: ModelInfo) -> Stopping:
        """Make the conditions that end the session. Raises ContextExceeded if the context is too short for max_tokens."""
        asked, context_left = request.stopping.max_tokens, target.max_context - prompt_tokens
        _check_context(asked, prompt_tokens, target.max_context)
        return replace(request.stopping, max_tokens=self._caps.max_tokens(asked, context_left))


def _check_context(max_tokens: int | None, prompt_tokens: int, max_context: int) -> None:
    """Raise ContextExceeded, with the numbers, if the context is too short for max_tokens. No verifier has to be asked for that."""
    context_left = max_context - prompt_tokens
    if max_tokens is not None and max_tokens > context_left:
        raise ContextExceeded(
            "max_tokens",
            f"is {max_tokens}, which with {prompt_tokens} prompt tokens exceeds the context of {max_context}; at most {context_left} fit",
        )


T = TypeVar("T")


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Merge streams: yield the events of all of them as they come, those of one stream in order.

    The first failure ends all of them and is raised. Closing this generator closes all of them.
    """
    came: asyncio.Queue[T | asyncio.Task[None]] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(stream, came)) for stream in streams]
    for pump in pumps:
        pump.add_done_callback(came.put_nowait)
    running = len(pumps)
    try:
        while running:
            event = await came.get()
            if isinstance(event, asyncio.Task):
                event.result()
                running -= 1
            else:
                yield event
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(stream: AsyncGenerator[T, None], came: asyncio.Queue[T | asyncio.Task[None]]) -> None:
    async with aclosing(stream):
        async for event in stream:
            came.put_nowait(event)
