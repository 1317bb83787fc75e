"""The life of one request, from prompt to last message. Works on values; the servicer is its edge.

1. number and seed  2. prompt to tokens  3. check  4. wait for a verifier  5. choose a drafter  6. decode  7. tokens to text
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from specsplit.errors import SpecsplitError
from specsplit.observe import TraceContext
from specsplit.requests import Delta, Done, GenerateRequest
from specsplit.sessions import DecodeRequest, Finished, Tokens
from specsplit.text.stop import StopScanner
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import FinishReason, Plan, Sampling, SpeculationStatistics, Usage
from specsplit_coordinator.account import Account, Books
from specsplit_coordinator.admission import Admission, Lease
from specsplit_coordinator.output import Output
from specsplit_coordinator.placement import check_wish, choose_drafter
from specsplit_coordinator.prompt import check_in_vocabulary, check_prompt, tokens_of
from specsplit_coordinator.registry import Registry, Seat, endpoint_of


class Decoder(Protocol):
    """What runs a session on a verifier."""

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
    """Where chance comes from."""

    seed: Callable[[], int]
    """A fresh seed, 64 bits unsigned."""
    request_id: Callable[[], str]
    """A fresh name."""


@dataclass(frozen=True)
class _Prepared:
    """A request with everything decided that does not depend on where it runs."""

    request: GenerateRequest
    model: str
    tokens: tuple[int, ...]
    sampling: Sampling
    scanner: StopScanner


class Generator:
    """Runs requests."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        registry: Registry,
        admission: Admission,
        decoder: Decoder,
        draws: Draws,
        books: Books,
    ) -> None:
        self._tokenizer = tokenizer
        self._registry = registry
        self._admission = admission
        self._decoder = decoder
        self._draws = draws
        self._books = books

    async def generate(
        self,
        request: GenerateRequest,
        remaining_s: Callable[[], float | None],
        at_end: Callable[[Callable[[], None]], None],
    ) -> AsyncGenerator[Delta | Done, None]:
        """Deltas, then one Done. Raises SpecsplitError.

        `remaining_s` tells the time left to the caller (None: no limit). `at_end` is given what must happen when the call is over,
        even if nobody closes this generator.
        """
        account = self._books.open(request, remaining_s)
        at_end(account.close)
        try:
            async with aclosing(self._run(request, remaining_s, at_end, account)) as events:
                async for event in events:
                    account.streamed(event)
                    yield event
        except Exception as error:
            account.failed(error)
            raise
        finally:
            account.close()

    def refused(self, error: SpecsplitError) -> None:
        """A request could not even be read."""
        self._books.refused(error)

    async def _run(
        self,
        request: GenerateRequest,
        remaining_s: Callable[[], float | None],
        at_end: Callable[[Callable[[], None]], None],
        account: Account,
    ) -> AsyncGenerator[Delta | Done, None]:
        """Every step of it."""
        prepared = await self._prepare(request, account)
        with account.stage("queue") as note:
            lease = await self._admission.enter()
            note("verifier", lease.verifier.member_id)
        at_end(lease.release)
        account.entered()
        try:
            self._place_drafter(lease, request.drafter)
            account.placed(lease)
            output = Output(self._tokenizer.detokenizer(prepared.tokens), prepared.scanner)
            session = _decode_request(prepared, lease)
            events = self._decoder.decode(lease.verifier, session, remaining_s(), account.context)
            async with aclosing(events), aclosing(_stream(events, output, account)) as stream:
                async for event in stream:
                    yield _done(prepared, lease, output, event) if isinstance(event, _End) else event
        finally:
            lease.release()

    async def _prepare(self, request: GenerateRequest, account: Account) -> _Prepared:
        """Steps 1 to 3."""
        request = replace(request, request_id=request.request_id or self._draws.request_id())
        check_wish(request.drafter)
        request.plan.over(Plan())
        scanner = StopScanner(request.stop)
        vocabulary = self._tokenizer.vocabulary
        check_in_vocabulary("stopping.stop_token_ids", request.stopping.stop_token_ids, vocabulary.size)
        with account.stage("tokenize") as note:
            tokens = await tokens_of(request.prompt, self._tokenizer)
            note("tokens", len(tokens))
        target = self._registry.model()
        check_prompt(request.prompt, tokens, vocabulary.size, target.max_context)
        choose_drafter(self._registry.drafters, request.drafter, vocabulary)
        prepared = _Prepared(request, target.model, tokens, self._seeded(request), scanner)
        account.prepared(request.request_id, prepared.model, prepared.sampling, len(tokens))
        return prepared

    def _seeded(self, request: GenerateRequest) -> Sampling:
        if request.seeded:
            return request.sampling
        return replace(request.sampling, seed=0 if request.sampling.greedy else self._draws.seed())

    def _place_drafter(self, lease: Lease, wish: str | None) -> None:
        shunned = tuple(lease.verifier.shunned)
        lease.take_drafter(choose_drafter(self._registry.drafters, wish, self._tokenizer.vocabulary, shunned))


@dataclass(frozen=True)
class _End:
    """Why a generation ended."""

    reason: FinishReason
    matched: str | int | None
    speculation: SpeculationStatistics


async def _stream(
    events: AsyncIterator[Tokens | Finished], output: Output, account: Account
) -> AsyncGenerator[Delta | _End, None]:
    """Deltas and the end, made of a verifier's events. Raises SpecsplitError if the verifier stops short."""
    async for event in events:
        account.received(event)
        if isinstance(event, Tokens):
            for delta in output.feed(event.tokens, event.num_correct_drafts):
                yield delta
            end = _End(FinishReason.STOP, output.matched, event.speculation)
        else:
            rest = output.finish()
            if rest:
                yield Delta(rest, ())
            reason = FinishReason.STOP if output.matched is not None else event.reason
            matched = event.stop_token if output.matched is None else output.matched
            end = _End(reason, matched, event.speculation)
        if output.matched is not None or isinstance(event, Finished):
            yield end
            return
    raise SpecsplitError("the verifier ended the session without saying why")


def _decode_request(prepared: _Prepared, lease: Lease) -> DecodeRequest:
    request = prepared.request
    return DecodeRequest(
        request_id=request.request_id,
        tokens=prepared.tokens,
        sampling=prepared.sampling,
        stopping=request.stopping,
        plan=request.plan,
        drafter=None if lease.drafter is None else endpoint_of(lease.drafter),
    )


def _done(prepared: _Prepared, lease: Lease, output: Output, end: _End) -> Done:
    return Done(
        request_id=prepared.request.request_id,
        reason=end.reason,
        matched_stop=end.matched,
        usage=Usage(len(prepared.tokens), output.kept),
        speculation=end.speculation,
        seed=prepared.sampling.seed,
        verifier=lease.verifier.member_id,
        drafter="" if lease.drafter is None else lease.drafter.member_id,
    )
