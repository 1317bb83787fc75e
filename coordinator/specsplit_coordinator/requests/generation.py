"""The life of one request, from prompt to last message. Works on values; the servicer is its edge.

1. check, quota  2. permit  3. name and seed  4. prompt to tokens, and the answer as far as the caller has it
of every choice by itself (`run`): 5. wait for a verifier  6. choose a drafter  7. decode  8. tokens to text
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Final

from specsplit.errors import SpecsplitError
from specsplit.generation.answer import Answer
from specsplit.generation.choices import all_of
from specsplit.generation.engine_request import EngineRequest
from specsplit.generation.listener import Listener
from specsplit.generation.preparation import Preparation, RandomSources, check_request
from specsplit.generation.prompt import PromptReader
from specsplit.requests import Delta, GenerateRequest
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import ModelInfo
from specsplit_coordinator.cluster.drafter_placement import check_drafters, check_wish
from specsplit_coordinator.requests.caps import Caps
from specsplit_coordinator.requests.fair_queue import QueueOwner
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


class CountedListener:
    """Counts the tokens that a listener hears as used."""

    def __init__(self, listener: Listener, use: Callable[[int], None]) -> None:
        self._hear = listener.hear
        self.use = use
        self.end = listener.end
        self.room = listener.room

    def hear(self, deltas: Sequence[Delta]) -> None:
        """Count them, and have them heard."""
        self.use(sum([len(delta.tokens) for delta in deltas]))
        self._hear(deltas)


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
        self._preparation = Preparation(random)
        self._requests = requests
        self._caps = caps
        self._quotas = quotas

    async def generate(self, request: GenerateRequest, remaining_s: Remaining, client: str, listener: Listener) -> None:
        """Do what `Generates.generate` says.

        `client` is the name that quotas and the queue know the caller by.

        Raises SpecsplitError; an error of one choice ends the others.
        """
        with self._requests.track(request, remaining_s, client) as logged:
            owner = QueueOwner(client, request.priority)
            target = self._check(request)
            verdict = await self._quotas.ask(client, request.n)
            with self._quotas.request(client, request.n, verdict) as use:
                await self._run(request, remaining_s, logged, owner, target, CountedListener(listener, use))

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
        listener: CountedListener,
    ) -> None:
        """Prepare the request, and run its choices.

        Tokens of its prompt, and of the answer that it resumes, count as used, unless it never gets to a verifier.
        """
        with self._permit(logged, owner):
            prepared = await self._prepare(request, target, logged, owner)
            runs = [await self._begin(prepared.choice(each.index), owner, remaining_s, each) for each in logged.choices]
        listener.use(read := logged.details.prompt_tokens + len(request.resume_from))
        try:
            for run in runs:
                run.enqueue()
            await all_of([run.run(listener) for run in runs])
        finally:
            for run in runs:
                run.cancel()
            if logged.verifier is None:
                listener.use(-read)

    async def _begin(
        self, prepared: EngineRequest, owner: QueueOwner, remaining_s: Remaining, logged: LoggedChoice
    ) -> Run:
        return Run(self._cluster, prepared, owner, await self._answer(prepared), remaining_s, logged)

    async def _answer(self, prepared: EngineRequest) -> Answer:
        """Begin an answer with the tokens that the caller has already. Raises InvalidRequest if the answer cannot begin so."""
        begin, resumed = partial(prepared.answer, self._tokenizer), prepared.request.resume_from
        return begin() if len(resumed) <= SHORT_ANSWER else await self._reader.aside(begin)

    def _check(self, request: GenerateRequest) -> ModelInfo:
        """Check what takes no time, before the request waits for anything -> the model of those verifiers that can serve it."""
        check_wish(request.drafter)
        self._caps.check(request)
        vocabulary = self._tokenizer.vocabulary
        check_request(request, vocabulary)
        target = self._cluster.registry.model(request.adapter)
        check_drafters(self._cluster.registry, request.drafter, vocabulary)
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
        """Give the request its tokens, its id, its seed and its bounds."""
        with logged.trace.stage("tokenize") as note:
            tokens = await self._reader.read(request.prompt, target.max_context)
            note("tokens", len(tokens))
        prepared = self._preparation.prepare(request, target, tokens, owner.client, self._caps.max_tokens)
        name, seed = prepared.request.request_id, prepared.sampling.seed
        logged.details = RequestDetails(name, prepared.model, seed, len(tokens))
        return prepared
