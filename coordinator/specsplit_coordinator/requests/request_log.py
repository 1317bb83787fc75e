"""The request log: what becomes of every request. `telemetry` subscribes to its events, and the page reads it.

    arrived ──> prepared ──> placed ──> first tokens ──> tokens … ──> ended: finished, failed, or left by the caller

A request may end at any point. Each of its choices is placed by itself, and again when its verifier is lost or fails it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

import grpc

from specsplit.clock import Clock
from specsplit.errors import SpecsplitError
from specsplit.observe import Tracing
from specsplit.requests import Done, GenerateRequest
from specsplit.rpc import code_of, code_of_departure
from specsplit.values import FailoverCause, FinishReason, SpeculationStatistics
from specsplit_coordinator.cluster.lease import Lease
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.requests.request_trace import RequestTrace

ENDED_KEPT = 8
"""Ended requests that ran, of which so many are kept."""
REFUSED_KEPT = 4
"""Ended requests that never ran, of which so many are kept."""
QUEUED, RUNNING = "queued", "running"
"""The states of a request that has not ended."""

Remaining = Callable[[], float | None]
"""Returns the seconds until the deadline of a call; None if it has none."""
RequestListener = Callable[["LoggedRequest", float], None]
"""Called with a request to which something has happened, and the seconds since it arrived."""


@dataclass(eq=False)
class LoggedChoice:
    """One choice of a request: its session on a verifier, as far as it has come."""

    request: LoggedRequest
    index: int
    verifier: MemberState | None = None
    drafter: MemberState | None = None
    tokens: int = 0
    """Received from the verifier."""
    speculation: SpeculationStatistics = field(default_factory=SpeculationStatistics)
    latest_tokens_at: float | None = None
    failovers: int = 0
    """How often it went on with another verifier, or with the same one after it had come back."""
    done: Done | None = None
    """The last message, if the choice finished."""

    def placed(self, lease: Lease) -> None:
        """Note where the choice runs."""
        first = self.request.verifier is None
        self.verifier, self.drafter = lease.verifier, lease.drafter
        if first:
            self.request.notify(self.request.log.on_placed)

    def failed_over(self, cause: FailoverCause, tokens: int) -> None:
        """Note that the choice goes on elsewhere, behind so many tokens that it has already."""
        self.failovers += 1
        self.request.log.totals.failovers += 1
        attributes = {
            "cause": cause.value,
            "verifier": self.verifier.member_id if self.verifier else "",
            "tokens": tokens,
        }
        self.request.trace.event("failover", attributes)
        for listener in self.request.log.on_failover:
            listener(cause, tokens)

    def preempted(self) -> None:
        """Note that its verifier preempted it."""
        self.request.log.totals.preemptions += 1

    def resumed(self, tokens: int) -> None:
        """Note that the caller has so many tokens of it already."""
        for listener in self.request.log.on_resumed:
            listener(tokens)

    def received(self, speculation: SpeculationStatistics) -> None:
        """Note what speculation has done, as its verifiers say."""
        log = self.request.log
        log.totals.steps += speculation.steps - self.speculation.steps
        log.totals.accepted += speculation.accepted - self.speculation.accepted
        self.speculation = speculation

    def burst(self, number: int) -> None:
        """Note that so many tokens have come at once."""
        if not number:
            return
        now = self.request.log.clock.now()
        self.tokens += number
        self.request.log.totals.tokens += number
        before, self.latest_tokens_at = self.latest_tokens_at, now
        if before is not None:
            for listener in self.request.log.on_tokens:
                listener(self.request, number, now - before)
        elif self.request.first_tokens_at is None:
            self.request.first_tokens_at = now
            self.request.notify(self.request.log.on_first_tokens)


@dataclass(frozen=True, slots=True)
class RequestDetails:
    """The facts of a request, most of which are known once it is prepared."""

    request_id: str
    model: str = ""
    """Empty until the request is prepared."""
    seed: int = 0
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended."""

    after_s: float
    """Seconds since the request arrived."""
    code: grpc.StatusCode
    """The status that the caller sees, unless it is gone."""
    failure: Exception | None
    """What the request ended with, if it failed."""


@dataclass(eq=False)
class LoggedRequest:
    """One request, and how far it has come. Times are seconds of the coordinator's clock."""

    log: RequestLog
    number: int
    """Unique in this process; the names that callers give are not."""
    asked: GenerateRequest
    arrived_at: float
    trace: RequestTrace
    details: RequestDetails
    client: str = ""
    """The name of the caller; empty where callers are not authenticated."""
    first_tokens_at: float | None = None
    """When the first token of any choice came."""
    ending: Ending | None = None
    """None: it has not ended."""
    choices: tuple[LoggedChoice, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.choices = tuple(LoggedChoice(self, index) for index in range(self.asked.n))

    @property
    def request_id(self) -> str:
        """The name that the caller gave, or that it got."""
        return self.details.request_id

    @property
    def verifier(self) -> MemberState | None:
        """The verifier of the first choice that has one."""
        return next((choice.verifier for choice in self.choices if choice.verifier is not None), None)

    @property
    def drafter(self) -> MemberState | None:
        """The drafter of the first choice that has one."""
        return next((choice.drafter for choice in self.choices if choice.drafter is not None), None)

    @property
    def tokens(self) -> int:
        """Tokens received from the verifiers, for all choices."""
        return sum(choice.tokens for choice in self.choices)

    @property
    def speculation(self) -> SpeculationStatistics:
        """The statistics of all choices, added up."""
        return SpeculationStatistics.sum([choice.speculation for choice in self.choices])

    @property
    def failovers(self) -> int:
        """How often one of its choices went on elsewhere."""
        return sum(choice.failovers for choice in self.choices)

    @property
    def dones(self) -> tuple[Done, ...]:
        """The last messages, one for each choice; none unless the whole request finished."""
        dones = tuple(choice.done for choice in self.choices if choice.done is not None)
        return dones if len(dones) == len(self.choices) else ()

    @property
    def reason(self) -> FinishReason | None:
        """Why a finished request ended: LENGTH if any of its choices was cut off, else STOP. None if it has not finished."""
        reasons = {done.reason for done in self.dones}
        return FinishReason.LENGTH if FinishReason.LENGTH in reasons else next(iter(reasons), None)

    @property
    def state(self) -> str:
        """QUEUED or RUNNING; of an ended request its finish reason, or the gRPC status in small letters."""
        if self.ending is None:
            return QUEUED if self.verifier is None else RUNNING
        return self.ending.code.name.lower() if self.reason is None else self.reason.value

    @property
    def refused(self) -> bool:
        """True if it ended before it had a place on a verifier."""
        return self.ending is not None and self.verifier is None

    def end(self, failure: Exception | None, left_s: float | None, allowed_s: float | None) -> None:
        """Note that the request finished, failed, or was left by the caller with `left_s` of its `allowed_s` seconds to go."""
        code = grpc.StatusCode.OK if self.dones else _code(failure, left_s, allowed_s)
        self.ending = Ending(self.log.clock.now() - self.arrived_at, code, failure)
        for listener in self.log.on_ended:
            listener(self, self.ending)

    def notify(self, listeners: list[RequestListener]) -> None:
        """Call these listeners."""
        after_s = self.log.clock.now() - self.arrived_at
        for listener in listeners:
            listener(self, after_s)


@dataclass(slots=True)
class Totals:
    """Sums over all requests since the start."""

    arrived: int = 0
    tokens: int = 0
    """Tokens generated."""
    steps: int = 0
    """Steps of all sessions: a step of a batch of three counts three times."""
    accepted: int = 0
    """Drafts that the target accepted."""
    failovers: int = 0
    """How often a choice went on elsewhere."""
    preemptions: int = 0
    """How often a verifier took the KV pages of a choice back."""


class RecentRequests:
    """The requests that ended last. Those that never ran are counted apart, so that many refusals displace none that ran."""

    def __init__(self) -> None:
        self._ran: deque[LoggedRequest] = deque(maxlen=ENDED_KEPT)
        self._refused: deque[LoggedRequest] = deque(maxlen=REFUSED_KEPT)

    def add(self, request: LoggedRequest) -> None:
        """Note a request that has just ended."""
        (self._refused if request.refused else self._ran).appendleft(request)

    def __iter__(self) -> Iterator[LoggedRequest]:
        """Yield the requests that ran, latest first, then those that never did, latest first."""
        return chain(self._ran, self._refused)


class RequestLog:
    """The requests that wait or run, those that ended last, and sums since the start."""

    def __init__(self, clock: Clock, tracing: Tracing) -> None:
        self.clock = clock
        self._tracing = tracing
        self.on_refused: list[Callable[[SpecsplitError], None]] = []
        """Called for a request that could not even be read."""
        self.on_placed: list[RequestListener] = []
        """Called when a request has its first place on a verifier."""
        self.on_first_tokens: list[RequestListener] = []
        self.on_tokens: list[Callable[[LoggedRequest, int, float], None]] = []
        """Called with how many more tokens came, and how many seconds after those before."""
        self.on_failover: list[Callable[[FailoverCause, int], None]] = []
        """Called with why a choice goes on elsewhere, and how many tokens of it were generated already."""
        self.on_resumed: list[Callable[[int], None]] = []
        """Called with how many tokens of its answer a caller had already."""
        self.on_ended: list[Callable[[LoggedRequest, Ending], None]] = []
        self._open: dict[int, LoggedRequest] = {}
        self._ended = RecentRequests()
        self.totals = Totals()

    @property
    def requests(self) -> tuple[LoggedRequest, ...]:
        """Requests that wait or run, in order of arrival, then those that ended last."""
        return (*self._open.values(), *self._ended)

    def find(self, number: int) -> LoggedRequest | None:
        """Look up the request with this number; None if it is not known any more."""
        return next((request for request in self.requests if request.number == number), None)

    def refused(self, error: SpecsplitError) -> None:
        """Note a request that could not even be read."""
        for listener in self.on_refused:
            listener(error)

    @contextmanager
    def track(self, asked: GenerateRequest, remaining_s: Remaining, client: str = "") -> Generator[LoggedRequest]:
        """Log a request from its arrival to its end, which is that of the block. To be entered in the task of its call."""
        self.totals.arrived += 1
        trace, details = RequestTrace(self._tracing, self.clock), RequestDetails(asked.request_id)
        request = LoggedRequest(self, self.totals.arrived, asked, self.clock.now(), trace, details, client)
        self._open[request.number] = request
        failure: Exception | None = None
        allowed_s = remaining_s()
        try:
            yield request
        except Exception as error:
            failure = error
            raise
        finally:
            del self._open[request.number]
            request.end(failure, remaining_s(), allowed_s)
            self._ended.add(request)


def _code(failure: Exception | None, left_s: float | None, allowed_s: float | None) -> grpc.StatusCode:
    """The status of a request that failed with `failure`, or that its caller has left."""
    if isinstance(failure, SpecsplitError):
        return code_of(failure)
    return code_of_departure(left_s, allowed_s) if failure is None else grpc.StatusCode.INTERNAL
