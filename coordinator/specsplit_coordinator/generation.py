"""The life of one request, from prompt to last message. Works on values; the servicer is its edge.

1. check  2. ticket  3. name and seed  4. prompt to tokens
of every choice by itself: 5. wait for a verifier  6. choose a drafter  7. decode  8. tokens to text

From 5 on again, behind the tokens that have come, when a verifier is lost, drains out, fails the session, or has no pages for it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from specsplit.errors import Exhausted, InvalidRequest, SpecsplitError, Unavailable
from specsplit.observe import TraceContext, fields
from specsplit.requests import Delta, Done, GenerateEvent, GenerateRequest, choice_seed
from specsplit.sessions import DecodeEvent, DecodeRequest, Preempted
from specsplit.text.stop import StopScanner
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import FailoverCause, FinishReason, ModelInfo, Sampling, Stopping, Usage
from specsplit.wire.common import check_bias, check_tokens
from specsplit_coordinator.admission import Admission, Lease
from specsplit_coordinator.answer import Answer
from specsplit_coordinator.caps import Caps
from specsplit_coordinator.merging import merged
from specsplit_coordinator.need import Need
from specsplit_coordinator.output import Output
from specsplit_coordinator.placement import DrafterPlacement, check_wish, choose_drafter
from specsplit_coordinator.prompt import PromptReader
from specsplit_coordinator.registry import Registry, Seat, endpoint_of
from specsplit_coordinator.request_log import LoggedChoice, LoggedRequest, Particulars, Remaining, RequestLog
from specsplit_coordinator.stalls import Stalls

_log = logging.getLogger(__name__)

SHORT_ANSWER: Final = 256
"""Tokens of an answer to resume that are made text again on the event loop: some milliseconds."""


class Decoder(Protocol):
    """Runs a session on a verifier."""

    def decode(
        self,
        seat: Seat,
        request: DecodeRequest,
        timeout_s: float | None = None,
        trace: TraceContext | None = None,
    ) -> AsyncGenerator[DecodeEvent, None]:
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

    room: int
    """Tokens that the context has room for behind the prompt."""

    @property
    def most(self) -> int:
        """Tokens that its answer can have."""
        return self.room if self.stopping.max_tokens is None else min(self.room, self.stopping.max_tokens)

    def need(self, answer: Answer) -> Need:
        """What is left of its answer wants of a verifier's KV."""
        most = self.stopping.max_tokens
        left = None if most is None else most - len(answer.tokens)
        return Need((*self.tokens, *answer.tokens), left, self.request.plan.num_draft_tokens)

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

    async def generate(self, request: GenerateRequest, remaining_s: Remaining) -> AsyncGenerator[GenerateEvent, None]:
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
    ) -> AsyncGenerator[GenerateEvent, None]:
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
    ) -> AsyncGenerator[GenerateEvent, None]:
        """One choice, from its place on a verifier on."""
        begin = partial(self._answer, prepared)
        short = len(prepared.request.resume_from) <= SHORT_ANSWER
        answer = begin() if short else await self._reader.aside(begin)
        logged.resumed(len(answer.tokens))
        async with aclosing(self._deltas(prepared, answer, remaining_s, logged)) as deltas:
            async for delta in deltas:
                yield replace(delta, index=logged.index) if logged.index else delta
        logged.done = _done(prepared, answer, logged)
        yield logged.done

    def _answer(self, prepared: _EngineRequest) -> Answer:
        """Begin an answer, behind what the caller has of it already. Raises InvalidRequest if it cannot have that."""
        request, tokenizer = prepared.request, self._tokenizer
        output = Output(tokenizer.detokenizer(prepared.tokens), StopScanner(request.stop), tokenizer.piece)
        return Answer(output, prepared.most, request.resume_from)

    async def _deltas(
        self, prepared: _EngineRequest, answer: Answer, remaining_s: Remaining, logged: LoggedChoice
    ) -> AsyncGenerator[Delta, None]:
        """The answer, from as many verifiers as it takes: one that is lost, or fails, is followed by another, or by itself come back."""
        stalls, failure, reserved = Stalls(len(answer.tokens)), None, None
        while answer.end is None and not answer.full:
            lease = reserved or await self._placed(prepared, answer, logged, failure)
            reserved = None
            # Outside of what follows: that there is no drafter is no fault of the verifier.
            self._place_drafter(lease, prepared, resumed=bool(answer.tokens))
            logged.placed(lease)
            try:
                async with aclosing(self._part(prepared, answer, lease, remaining_s, logged)) as deltas:
                    async for delta in deltas:
                        yield delta
            except _Moves as moves:
                reserved = moves.to
                self._goes_on(FailoverCause.PREEMPTED, answer, logged)
            except (Unavailable, Exhausted) as error:
                failure = error
                self._let_down(lease.verifier, error, stalls, answer, logged)
            finally:
                lease.release()
        if answer.end is None:  # the verifier was lost behind the last token that there can be
            for delta in answer.finish(FinishReason.LENGTH):
                yield delta

    async def _placed(
        self, prepared: _EngineRequest, answer: Answer, logged: LoggedChoice, failure: SpecsplitError | None
    ) -> Lease:
        """A place for what is left of an answer; `failure` is what its last verifier ended with, if it had one."""
        with logged.request.trace.stage("queue") as note:
            try:
                lease = await self._admission.enter(prepared.need(answer), again=failure is not None)
            except Unavailable as error:
                raise error if failure is None else Unavailable(f"{failure}; {error}") from error
            note("verifier", lease.verifier.member_id)
        return lease

    def _let_down(
        self, verifier: Seat, error: SpecsplitError, stalls: Stalls, answer: Answer, logged: LoggedChoice
    ) -> None:
        """A verifier failed a session, or is gone: it cools down, and the session goes on elsewhere. Raises the error if it ends here."""
        verifier.breaker.failed()
        received = len(answer.tokens)
        goes_on = answer.full or stalls.goes_on(received, verifier, self._registry.verifiers)
        told = fields(
            request=logged.request.request_id,
            member_id=verifier.member_id,
            why=str(error),
            tokens=received,
            cool_down_s=round(verifier.breaker.cool_down_s, 1),
            goes_on=goes_on,
        )
        _log.warning("a verifier let a session down", extra=told)
        if not goes_on:
            raise error
        self._goes_on(_cause(verifier), answer, logged)

    def _goes_on(self, cause: FailoverCause, answer: Answer, logged: LoggedChoice) -> None:
        answer.moves()
        logged.failed_over(cause, len(answer.tokens))

    async def _part(
        self,
        prepared: _EngineRequest,
        answer: Answer,
        lease: Lease,
        remaining_s: Remaining,
        logged: LoggedChoice,
    ) -> AsyncGenerator[Delta, None]:
        """What the verifier of `lease` adds to an answer. Raises SpecsplitError if it stops short, _Moves if another has room for it."""
        session, begun = _decode_request(prepared, answer, lease), len(answer.tokens)
        events = self._decoder.decode(lease.verifier, session, remaining_s(), logged.request.trace.context)
        async with aclosing(_speaking_well(events, lease)) as events:
            async for event in events:
                if isinstance(event, Preempted):
                    logged.preempted()
                    self._move(prepared, answer, lease, begun)
                    continue
                summed = answer.summed(event)
                logged.received(summed)
                for delta in answer.feed(summed):
                    yield delta
                if answer.end is not None:
                    return
        raise SpecsplitError("the verifier ended the session without saying why")

    def _move(self, prepared: _EngineRequest, answer: Answer, lease: Lease, begun: int) -> None:
        """Its verifier has preempted a session. Raises _Moves if another has pages for it; not before it has got on, lest it go round."""
        if answer.full or len(answer.tokens) == begun:
            return
        to = self._admission.better(lease.verifier, prepared.need(answer))
        if to is not None:
            raise _Moves(to)

    def _check(self, request: GenerateRequest) -> ModelInfo:
        """What can be told at a glance. Returns what the verifiers serve."""
        check_wish(request.drafter)
        self._caps.check(request)
        StopScanner(request.stop)  # raises for a stop string that cannot be
        vocabulary = self._tokenizer.vocabulary
        check_tokens("stopping.stop_token_ids", request.stopping.stop_token_ids, vocabulary.size)
        check_tokens("resume_from", request.resume_from, vocabulary.size)
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
        stopping, room = self._stopping(request, len(tokens), target), target.max_context - len(tokens)
        prepared = _EngineRequest(request, target.model, tokens, self._seeded(request), stopping, room)
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

    def _place_drafter(self, lease: Lease, prepared: _EngineRequest, *, resumed: bool) -> None:
        """Choose a drafter. A session that is `resumed` does without one of the wished kind; for others, raises Unavailable and gives the
        place back.
        """
        wish, target, sampled = prepared.request.drafter, self._tokenizer.vocabulary, not prepared.sampling.greedy
        try:
            drafter = self._placement.choose(self._registry, lease.verifier, wish, target, sampled=sampled)
        except Unavailable as error:
            if not resumed:
                lease.release()
                raise
            told = fields(request=prepared.request.request_id, asked=wish, why=str(error))
            _log.warning("a session goes on without the drafter that was asked for", extra=told)
            drafter = None
        lease.take_drafter(drafter)


def _check_room(max_tokens: int | None, prompt_tokens: int, max_context: int) -> None:
    """Raise InvalidRequest, with the numbers, for more output than the context has room for: no verifier need be asked, nor waited for."""
    room = max_context - prompt_tokens
    if max_tokens is not None and max_tokens > room:
        raise InvalidRequest(
            "max_tokens",
            f"is {max_tokens}, which with {prompt_tokens} prompt tokens exceeds the context of {max_context}; at most {room} fit",
        )


class _Moves(Exception):
    """A session that its verifier had to preempt goes on where there are pages for it."""

    def __init__(self, to: Lease) -> None:
        super().__init__(to.verifier.member_id)
        self.to = to


def _cause(verifier: Seat) -> FailoverCause:
    """Why a session had to leave a verifier."""
    if verifier.draining:
        return FailoverCause.DRAINED
    return FailoverCause.FAILED if verifier.lost_because is None else FailoverCause.LOST


async def _speaking_well(events: AsyncGenerator[DecodeEvent, None], lease: Lease) -> AsyncGenerator[DecodeEvent, None]:
    """Pass the events on; the first one speaks well of the verifier."""
    async with aclosing(events):
        answered = False
        async for event in events:
            if not answered:
                answered = True
                lease.succeeded()
            yield event


def _decode_request(prepared: _EngineRequest, answer: Answer, lease: Lease) -> DecodeRequest:
    request = prepared.request
    return DecodeRequest(
        request_id=request.request_id,
        tokens=(*prepared.tokens, *answer.tokens),
        sampling=prepared.sampling,
        stopping=prepared.stopping,
        plan=request.plan,
        drafter=None if lease.drafter is None else endpoint_of(lease.drafter),
        logprobs=request.logprobs,
        any_drafter=request.drafter is None,
        committed=len(answer.tokens),
    )


def _done(prepared: _EngineRequest, answer: Answer, logged: LoggedChoice) -> Done:
    assert answer.end is not None, "what goes on has no last message"
    return Done(
        request_id=prepared.request.request_id,
        reason=answer.end.reason,
        matched_stop=answer.end.matched,
        usage=Usage(len(prepared.tokens), answer.kept, answer.cached_prompt_tokens),
        speculation=answer.speculation,
        seed=prepared.sampling.seed,
        verifier="" if logged.verifier is None else logged.verifier.member_id,
        drafter="" if logged.drafter is None else logged.drafter.member_id,
        index=logged.index,
    )
