"""The life of one request, from prompt to last message. Works on values; the servicer is its edge.

1. check  2. ticket  3. name and seed  4. prompt to tokens
of every choice by itself: 5. wait for a verifier  6. choose a drafter  7. decode  8. tokens to text
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from specsplit.errors import Exhausted, InvalidRequest, SpecsplitError, Unavailable
from specsplit.observe import TraceContext, fields
from specsplit.requests import Delta, Done, GenerateRequest, choice_seed
from specsplit.sessions import DecodeRequest, Finished, Tokens
from specsplit.text.stop import StopScanner
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import FinishReason, ModelInfo, Sampling, SpeculationStatistics, Stopping, Usage
from specsplit.wire.common import check_bias, check_tokens
from specsplit_coordinator.admission import Admission, Lease
from specsplit_coordinator.caps import Caps
from specsplit_coordinator.merging import merged
from specsplit_coordinator.output import Output
from specsplit_coordinator.placement import DrafterPlacement, check_wish, choose_drafter, has_other
from specsplit_coordinator.prompt import PromptReader
from specsplit_coordinator.registry import Registry, Seat, endpoint_of
from specsplit_coordinator.request_log import LoggedChoice, LoggedRequest, Particulars, Remaining, RequestLog

_log = logging.getLogger(__name__)

MAX_PLACEMENTS = 3
"""Verifiers that one choice is tried on, at most: a request that brings verifiers down must not meet all of them."""


class Decoder(Protocol):
    """Runs a session on a verifier."""

    def decode(
        self,
        seat: Seat,
        request: DecodeRequest,
        timeout_s: float | None = None,
        trace: TraceContext | None = None,
    ) -> AsyncGenerator[Tokens | Finished, None]:
        """The events of one session, which belongs below `trace`; closing the generator ends it."""
        ...


@dataclass(frozen=True)
class Draws:
    """The sources of chance."""

    seed: Callable[[], int]
    """A fresh seed, 64 bits unsigned."""
    request_id: Callable[[], str]
    """A fresh name."""


@dataclass(frozen=True)
class _EngineRequest:
    """A request with everything decided that does not depend on where it runs."""

    request: GenerateRequest
    model: str
    tokens: tuple[int, ...]
    sampling: Sampling
    stopping: Stopping

    def choice(self, index: int) -> _EngineRequest:
        """Return the request as one of its choices is decoded: with the seed of that choice."""
        return replace(self, sampling=replace(self.sampling, seed=choice_seed(self.sampling.seed, index)))


class Generator:
    """Runs requests, from the check at a glance to the last message."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        registry: Registry,
        admission: Admission,
        decoder: Decoder,
        draws: Draws,
        requests: RequestLog,
        caps: Caps,
        placement: DrafterPlacement,
    ) -> None:
        self._tokenizer = tokenizer
        self._reader = PromptReader(tokenizer)
        self._registry = registry
        self._admission = admission
        self._decoder = decoder
        self._draws = draws
        self._requests = requests
        self._caps = caps
        self._placement = placement

    async def generate(self, request: GenerateRequest, remaining_s: Remaining) -> AsyncGenerator[Delta | Done, None]:
        """Deltas of every choice, mixed, and a Done behind those of each. Whoever asks closes the generator, at the end too.

        Raises SpecsplitError; what one choice fails with ends the others.
        """
        with self._requests.follow(request, remaining_s) as logged:
            async with aclosing(self._run(request, remaining_s, logged)) as events:
                async for event in events:
                    yield event

    def refused(self, error: SpecsplitError) -> None:
        """Note a request that could not even be read."""
        self._requests.refused(error)

    def close(self) -> None:
        """End the threads that read prompts; no more requests may come."""
        self._reader.close()

    async def _run(
        self, request: GenerateRequest, remaining_s: Remaining, logged: LoggedRequest
    ) -> AsyncGenerator[Delta | Done, None]:
        """Check and prepare the request, and run its choices."""
        target = self._check(request)
        with self._ticket(logged):
            prepared = await self._prepare(request, target, logged)
        choices = [self._choice(prepared.choice(each.index), remaining_s, each) for each in logged.choices]
        async with aclosing(merged(choices) if len(choices) > 1 else choices[0]) as events:
            async for event in events:
                yield event

    async def _choice(
        self, prepared: _EngineRequest, remaining_s: Remaining, logged: LoggedChoice
    ) -> AsyncGenerator[Delta | Done, None]:
        """One choice, from its place on a verifier on. If that fails before its first event, it goes to another, if there is one."""
        for attempt in range(1, MAX_PLACEMENTS + 1):
            with logged.request.trace.stage("queue") as note:
                lease = await self._admission.enter(again=attempt > 1)
                note("verifier", lease.verifier.member_id)
            try:
                async with aclosing(self._decode(prepared, lease, remaining_s, logged)) as events:
                    async for event in events:
                        if isinstance(event, Done):
                            logged.done = event
                        yield replace(event, index=logged.index) if logged.index else event
                return
            except _Unanswered as failure:
                if not self._goes_elsewhere(lease.verifier, failure.error) or attempt == MAX_PLACEMENTS:
                    raise failure.error from failure
            finally:
                lease.release()

    def _goes_elsewhere(self, verifier: Seat, error: SpecsplitError) -> bool:
        """A verifier let a session down before its first event: it cools down. True if there is another that the session may go to."""
        verifier.breaker.failed()
        others = has_other(self._registry.verifiers, verifier)
        told = fields(
            member_id=verifier.member_id,
            why=str(error),
            cool_down_s=round(verifier.breaker.cool_down_s, 1),
            elsewhere=others,
        )
        _log.warning("verifier failed a session before its first token", extra=told)
        return others

    async def _decode(
        self, prepared: _EngineRequest, lease: Lease, remaining_s: Remaining, logged: LoggedChoice
    ) -> AsyncGenerator[Delta | Done, None]:
        """The session on the verifier of `lease`. Raises _Unanswered if the verifier fails before its first event."""
        self._place_drafter(lease, prepared)
        logged.placed(lease)
        tokenizer = self._tokenizer
        output = Output(tokenizer.detokenizer(prepared.tokens), StopScanner(prepared.request.stop), tokenizer.piece)
        session, trace = _decode_request(prepared, lease), logged.request.trace
        events = _answered(self._decoder.decode(lease.verifier, session, remaining_s(), trace.context), lease)
        async with aclosing(events), aclosing(_stream(events, output, logged)) as stream:
            async for event in stream:
                yield _done(prepared, lease, output, event) if isinstance(event, _End) else event

    def _check(self, request: GenerateRequest) -> ModelInfo:
        """What can be told at a glance. Returns what the verifiers serve."""
        check_wish(request.drafter)
        self._caps.check(request)
        StopScanner(request.stop)  # raises for a stop string that cannot be
        vocabulary = self._tokenizer.vocabulary
        check_tokens("stopping.stop_token_ids", request.stopping.stop_token_ids, vocabulary.size)
        check_bias("sampling.logit_bias", request.sampling, vocabulary.size)
        target = self._registry.model()
        choose_drafter(self._registry.drafters, request.drafter, vocabulary)
        return target

    def _ticket(self, logged: LoggedRequest) -> AbstractContextManager[None]:
        try:
            return self._admission.ticket(logged.asked.n)
        except SpecsplitError:
            with logged.trace.stage("queue"):  # that is where it ended
                raise

    async def _prepare(self, request: GenerateRequest, target: ModelInfo, logged: LoggedRequest) -> _EngineRequest:
        """Give the request its name, its seed and its tokens."""
        request = replace(request, request_id=request.request_id or self._draws.request_id())
        with logged.trace.stage("tokenize") as note:
            tokens = await self._reader.read(request.prompt, target.max_context)
            note("tokens", len(tokens))
        prepared = _EngineRequest(
            request, target.model, tokens, self._seeded(request), self._stopping(request, len(tokens), target)
        )
        logged.particulars = Particulars(request.request_id, prepared.model, prepared.sampling.seed, len(tokens))
        return prepared

    def _seeded(self, request: GenerateRequest) -> Sampling:
        if request.seeded:
            return request.sampling
        return replace(request.sampling, seed=0 if request.sampling.greedy else self._draws.seed())

    def _stopping(self, request: GenerateRequest, prompt_tokens: int, target: ModelInfo) -> Stopping:
        """When the session ends. Raises InvalidRequest for more output than the context has room for."""
        asked, room = request.stopping.max_tokens, target.max_context - prompt_tokens
        _check_room(asked, prompt_tokens, target.max_context)
        return replace(request.stopping, max_tokens=self._caps.max_tokens(asked, room))

    def _place_drafter(self, lease: Lease, prepared: _EngineRequest) -> None:
        wish, target, sampled = prepared.request.drafter, self._tokenizer.vocabulary, not prepared.sampling.greedy
        lease.take_drafter(self._placement.choose(self._registry, lease.verifier, wish, target, sampled=sampled))


def _check_room(max_tokens: int | None, prompt_tokens: int, max_context: int) -> None:
    """Raise InvalidRequest, with the numbers, for more output than the context has room for: no verifier need be asked, nor waited for."""
    room = max_context - prompt_tokens
    if max_tokens is not None and max_tokens > room:
        raise InvalidRequest(
            "max_tokens",
            f"is {max_tokens}, which with {prompt_tokens} prompt tokens exceeds the context of {max_context}; at most {room} fit",
        )


class _Unanswered(Exception):
    """A verifier failed a session before its first event, so that another may take the session over."""

    def __init__(self, error: SpecsplitError) -> None:
        super().__init__(str(error))
        self.error = error


async def _answered(
    events: AsyncGenerator[Tokens | Finished, None], lease: Lease
) -> AsyncGenerator[Tokens | Finished, None]:
    """Pass the events on; the first one speaks well of the verifier. Raises _Unanswered where none came for a reason that is its own."""
    answered = False
    try:
        async with aclosing(events):
            async for event in events:
                if not answered:
                    answered = True
                    lease.succeeded()
                yield event
    except (Unavailable, Exhausted) as error:
        if answered:
            raise
        raise _Unanswered(error) from error


@dataclass(frozen=True)
class _End:
    """Why a generation ended."""

    reason: FinishReason
    matched: str | int | None
    speculation: SpeculationStatistics
    cached_prompt_tokens: int


async def _stream(
    events: AsyncIterator[Tokens | Finished], output: Output, logged: LoggedChoice
) -> AsyncGenerator[Delta | _End, None]:
    """Deltas and the end, made of a verifier's events. Raises SpecsplitError if the verifier stops short."""
    async for event in events:
        logged.received(event)
        if isinstance(event, Tokens):
            for delta in output.feed(event):
                yield delta
            end = _End(FinishReason.STOP, output.matched, event.speculation, event.cached_prompt_tokens)
        else:
            rest = output.finish()
            if rest:
                yield Delta(rest, ())
            reason = FinishReason.STOP if output.matched is not None else event.reason
            matched = event.stop_token if output.matched is None else output.matched
            end = _End(reason, matched, event.speculation, event.usage.cached_prompt_tokens)
        if output.matched is not None or isinstance(event, Finished):
            yield end
            return
    raise SpecsplitError("the verifier ended the session without saying why")


def _decode_request(prepared: _EngineRequest, lease: Lease) -> DecodeRequest:
    request = prepared.request
    return DecodeRequest(
        request_id=request.request_id,
        tokens=prepared.tokens,
        sampling=prepared.sampling,
        stopping=prepared.stopping,
        plan=request.plan,
        drafter=None if lease.drafter is None else endpoint_of(lease.drafter),
        logprobs=request.logprobs,
        any_drafter=request.drafter is None,
    )


def _done(prepared: _EngineRequest, lease: Lease, output: Output, end: _End) -> Done:
    return Done(
        request_id=prepared.request.request_id,
        reason=end.reason,
        matched_stop=end.matched,
        usage=Usage(len(prepared.tokens), output.kept, end.cached_prompt_tokens),
        speculation=end.speculation,
        seed=prepared.sampling.seed,
        verifier=lease.verifier.member_id,
        drafter="" if lease.drafter is None else lease.drafter.member_id,
    )
