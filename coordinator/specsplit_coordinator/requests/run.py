"""The run of one choice: its sessions on verifiers, one after the other, until its answer is complete.

place ──> decode ──> end
  ^          │
  └──────────┘  behind the tokens that have come, when the verifier is lost, drains out, fails the session, or has no pages for it
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from specsplit.errors import Exhausted, SpecsplitError, TargetFailed, Unavailable, Unread
from specsplit.generation.answer import Answer
from specsplit.generation.burst import parts
from specsplit.generation.choices import of_choice
from specsplit.generation.engine_request import EngineRequest
from specsplit.generation.listener import Listener
from specsplit.observe import fields
from specsplit.requests import Done
from specsplit.sessions import DecodeEvent, Preempted, Tokens
from specsplit.values import FailoverCause, FinishReason, Vocabulary
from specsplit_coordinator.cluster.drafter_placement import DrafterPlacement
from specsplit_coordinator.cluster.lease import Lease
from specsplit_coordinator.cluster.placement import has_other
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.members.compatibility import having
from specsplit_coordinator.members.member_state import MemberState, endpoint_of
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.members.verifier_session import VerifierSession
from specsplit_coordinator.requests.admission import Admission
from specsplit_coordinator.requests.fair_queue import QueueOwner
from specsplit_coordinator.requests.permits import Waiter
from specsplit_coordinator.requests.request_log import LoggedChoice, Remaining

_log = logging.getLogger(__name__)
SHORTAGE_S: Final = 0.5
"""If the targets of all verifiers have failed on a session, it is tried again after this time: one may have been short of memory."""


class Decoder(Protocol):
    """Runs a session on a verifier."""

    async def decode(self, verifier: MemberState, session: VerifierSession) -> None:
        """Decode a session until it has ended or is left. Raises SpecsplitError, and what `session.take` raises."""
        ...


@dataclass(frozen=True)
class ClusterAccess:
    """What runs use of the cluster: its members, the places on them, and sessions on verifiers."""

    registry: Registry
    admission: Admission
    decoder: Decoder
    drafters: DrafterPlacement
    target: Vocabulary


class Run:
    """One choice, from its first place on a verifier to its last message."""

    def __init__(
        self,
        cluster: ClusterAccess,
        prepared: EngineRequest,
        owner: QueueOwner,
        answer: Answer,
        remaining_s: Remaining,
        logged: LoggedChoice,
    ) -> None:
        self._cluster = cluster
        self._prepared = prepared
        self._owner = owner
        self._answer = answer
        self._remaining_s = remaining_s
        self._logged = logged
        self._retries = RetryBudget(len(answer.tokens))
        self._failure: SpecsplitError | None = None
        """The error of the last verifier that failed it."""
        self._failed_on = frozenset[str]()
        """Verifiers, by member id, whose targets have failed on it."""
        self._reserved: Lease | None = None
        """The lease on the verifier that it moves to, after another one has preempted it."""
        self._first: Waiter | None = None
        """Its entry in the queue, if it was enqueued before it was run."""

    def enqueue(self) -> None:
        """Enter the queue now, so that the next request finds this one counted; `cancel` has to be called at the end."""
        if self._unfinished:
            self._first = self._cluster.admission.enqueue(self._placement, owner=self._owner)

    def cancel(self) -> None:
        """Leave the queue, if the choice was never run. A second call does nothing."""
        place, self._first = self._first, None
        if place is not None:
            self._cluster.admission.cancel(place)

    async def run(self, listener: Listener) -> None:
        """Run it to its end, and have `listener` hear it. Raises SpecsplitError."""
        self._logged.resumed(len(self._answer.tokens))
        try:
            while self._unfinished:
                await self._session(listener)
        finally:
            if self._reserved is not None:
                self._reserved.release()
        # the verifier may have been lost behind the last token of the answer, and before it could say so
        if self._answer.end is None and (deltas := self._answer.finish(FinishReason.LENGTH)):
            listener.hear(of_choice(deltas, self._logged.index))
        self._logged.done = self._done()
        listener.end(self._logged.done)

    @property
    def _unfinished(self) -> bool:
        return self._answer.end is None and not self._answer.full

    async def _session(self, listener: Listener) -> None:
        """Run one session on a verifier. Raises SpecsplitError if the choice fails with it."""
        lease = await self._place()
        try:
            await self._decode(lease, listener)
        except Unread:  # no fault of the verifier's
            raise
        except (Unavailable, Exhausted) as error:
            self._on_failure(lease.verifier, error)
            if isinstance(error, TargetFailed) and self._unfinished and not self._untried:
                await asyncio.sleep(SHORTAGE_S)
        finally:
            lease.release()

    async def _place(self) -> Lease:
        """Wait for a verifier, and choose a drafter, for what is left of the answer."""
        lease, self._reserved = self._reserved or await self._wait(), None
        self._take_drafter(lease)
        self._logged.placed(lease)
        return lease

    async def _wait(self) -> Lease:
        failure = self._failure
        with self._logged.request.trace.stage("queue") as note:
            try:
                lease = await self._acquire(again=failure is not None)
            except Unavailable as error:
                if failure is None:
                    raise
                raise Unavailable(f"{failure}; {error}") from error
            note("verifier", lease.verifier.member_id)
        return lease

    async def _acquire(self, *, again: bool) -> Lease:
        first, self._first = self._first, None
        if first is not None:
            return await self._cluster.admission.wait(first)
        return await self._cluster.admission.acquire(self._placement, again=again, owner=self._owner)

    @property
    def _placement(self) -> PlacementRequest:
        """What is left of its answer is to be placed; verifiers whose targets have failed on it are the last choice."""
        prepared, tokens, most = self._prepared, self._answer.tokens, self._prepared.stopping.max_tokens
        left = None if most is None else most - len(tokens)
        drafted = prepared.request.plan.num_draft_tokens
        return PlacementRequest((*prepared.tokens, *tokens), left, drafted, self._failed_on, prepared.adapter)

    @property
    def _verifiers(self) -> Sequence[MemberState]:
        """Verifiers that have its adapter."""
        return having(self._cluster.registry.verifiers, self._prepared.adapter)

    @property
    def _untried(self) -> bool:
        """True if there is a verifier whose target has not failed on it."""
        return any(member.member_id not in self._failed_on for member in self._verifiers if not member.closed_because)

    def _take_drafter(self, lease: Lease) -> None:
        """Choose a drafter. If there is none of the wished kind, a choice that has some of its answer goes on without; otherwise
        the lease is released, since that is no failure of the verifier, and Unavailable is raised.
        """
        cluster, wish, sampled = self._cluster, self._prepared.request.drafter, not self._prepared.sampling.greedy
        try:
            drafter = cluster.drafters.choose(cluster.registry, lease.verifier, wish, cluster.target, sampled=sampled)
        except Unavailable as error:
            if not self._answer.tokens:
                lease.release()
                raise
            extra = fields(request=self._prepared.request.request_id, asked=wish, why=str(error))
            _log.warning("a session goes on without the drafter that was asked for", extra=extra)
            drafter = None
        lease.take_drafter(drafter)

    async def _decode(self, lease: Lease, listener: Listener) -> None:
        """Add what the verifier of `lease` brings to the answer, until that is complete or the choice moves. Raises SpecsplitError."""
        begun, drafter = len(self._answer.tokens), None if lease.drafter is None else endpoint_of(lease.drafter)
        asked, take = self._prepared.session(self._answer, drafter), partial(self._take, listener, lease, begun)
        with self._logged.request.trace.session(lease.verifier.member_id) as context:
            session = VerifierSession(asked, take, listener.room, self._remaining_s(), context)
            await self._cluster.decoder.decode(lease.verifier, session)
        if not self._left:
            raise SpecsplitError(f"verifier {lease.verifier.member_id} ended the session without saying why")

    @property
    def _left(self) -> bool:
        """True if the verifier has nothing more to do for it: the answer is complete, or the choice moves."""
        return self._answer.end is not None or self._reserved is not None

    def _take(self, listener: Listener, lease: Lease, begun: int, events: Sequence[DecodeEvent]) -> bool:
        """Take in events that came at once, up to one at which the verifier is left -> whether it is."""
        lease.succeeded()
        self._logged.burst(sum([len(event.tokens) for event in events if isinstance(event, Tokens)]))
        for part in parts(events):
            if isinstance(part, Preempted):
                self._preempted(lease.verifier, begun)
            else:
                deltas = self._answer.hear(part)
                self._logged.received(self._answer.speculation)
                if deltas:
                    listener.hear(of_choice(deltas, self._logged.index))
            if self._left:
                return True
        return False

    def _preempted(self, verifier: MemberState, begun: int) -> None:
        """Reserve a place on a verifier with pages for it, unless it has got no tokens since it had `begun` here: it could move forever."""
        self._logged.preempted()
        if self._answer.full or len(self._answer.tokens) == begun:
            return
        self._reserved = self._cluster.admission.acquire_elsewhere(verifier, self._placement)
        if self._reserved is not None:
            self._fail_over(FailoverCause.PREEMPTED)

    def _on_failure(self, verifier: MemberState, error: SpecsplitError) -> None:
        """Handle a verifier that failed the choice or is gone: it cools down, and the choice goes on elsewhere, or the error is raised.

        A verifier whose target fails on this choice alone is fine for others, and does not cool down.
        """
        if isinstance(error, TargetFailed):
            self._failed_on |= {verifier.member_id}
        else:
            verifier.breaker.failed()
        received = len(self._answer.tokens)
        goes_on = self._answer.full or self._retries.allows(received, verifier, self._verifiers)
        extra = fields(
            request=self._logged.request.request_id,
            member_id=verifier.member_id,
            why=str(error),
            tokens=received,
            cool_down_s=round(verifier.breaker.cool_down_s, 1),
            goes_on=goes_on,
        )
        _log.warning("a verifier let a session down", extra=extra)
        if not goes_on:
            raise error
        self._failure = error
        if self._answer.full:  # only the last message of the verifier is missing, and no other is asked for that
            self._answer.moves()
        else:
            self._fail_over(_cause(verifier))

    def _fail_over(self, cause: FailoverCause) -> None:
        self._answer.moves()
        self._logged.failed_over(cause, len(self._answer.tokens))

    def _done(self) -> Done:
        logged = self._logged
        verifier = "" if logged.verifier is None else logged.verifier.member_id
        drafter = "" if logged.drafter is None else logged.drafter.member_id
        return self._prepared.done(self._answer, logged.index, verifier=verifier, drafter=drafter)


def _cause(verifier: MemberState) -> FailoverCause:
    """Tell why a session had to leave a verifier."""
    if verifier.leaving:
        return FailoverCause.DRAINED
    return FailoverCause.LOST if verifier.absent else FailoverCause.FAILED


MAX_PLACEMENTS = 3
"""Placements of a choice in a row that bring no token, at most: a request that crashes verifiers must not be sent to all of them."""


class RetryBudget:
    """Bounds the placements of one choice in a row that bring no new token. Those that bring one are bounded by the deadline alone."""

    def __init__(self, tokens: int = 0) -> None:
        """`tokens`: those that the choice began with."""
        self._tokens = tokens
        self._in_a_row = 0

    def allows(self, tokens: int, failed: MemberState, verifiers: Sequence[MemberState]) -> bool:
        """Count a failed placement, after which the choice has `tokens` tokens -> whether there may be another.

        There may not if the only verifier is the one that failed, is still in the cluster, and has failed too often in a row.
        """
        self._in_a_row = 0 if tokens > self._tokens else self._in_a_row + 1
        self._tokens = tokens
        if self._in_a_row >= MAX_PLACEMENTS:
            return False
        gone = failed.leaving or failed.absent
        return gone or failed.breaker.failures < MAX_PLACEMENTS or has_other(verifiers, failed)
