"""Requests and members, as the coordinator counts them."""

from __future__ import annotations

from collections.abc import Callable

from specsplit.membership import Cluster
from specsplit.observe import metric_table as table
from specsplit.observe.metric_table import Service
from specsplit.observe.metrics.base import Metrics
from specsplit.values import FinishReason, ModelInfo


class CoordinatorMetrics(Metrics):
    """Requests and members."""

    def __init__(self, *, on: bool) -> None:
        super().__init__(Service.COORDINATOR, on=on)
        made = self.instruments
        self._finished = {reason: made.counter(table.REQUESTS_FINISHED, reason.value) for reason in FinishReason}
        self._failed = {code: made.counter(table.REQUESTS_FAILED, code) for code in table.CODE.values}
        self._lost = {role: made.counter(table.MEMBERS_LOST, role) for role in table.ROLE.values}
        self._first_token = made.histogram(table.TIME_TO_FIRST_TOKEN)
        self._between_tokens = made.histogram(table.INTER_TOKEN_LATENCY)
        self._duration = made.histogram(table.REQUEST_DURATION)
        self._queue_time = made.histogram(table.QUEUE_TIME)

    def request(self, arrived: float, trace_id: str = "") -> RequestTimes:
        """A request arrived at `arrived` (the clock's seconds). `trace_id`: 32 hex digits if it is traced and sampled."""
        return RequestTimes(self, arrived, trace_id)

    def member_lost(self, role: object) -> None:
        """A member with this `ModelInfo` or `DrafterInfo` went without draining."""
        self._lost[_role(role)].add()

    def watch(self, read: Callable[[], Cluster]) -> None:
        """Where to look the cluster up, on the event loop, before every scrape."""
        made = self.instruments
        running, queued = made.gauge(table.RUNNING_REQUESTS), made.gauge(table.QUEUED_REQUESTS)

        def look() -> None:
            cluster = read()
            running.set(cluster.running)
            queued.set(cluster.queued)
            present = [(_role(member.role), "draining" if member.draining else "serving") for member in cluster.members]
            for role in table.ROLE.values:
                for state in table.STATE.values:
                    made.gauge(table.MEMBERS, role, state).set(present.count((role, state)))

        self._watchers.append(look)

    def first_token(self, seconds: float, trace_id: str) -> None:
        """For `RequestTimes`."""
        self._first_token.observe(seconds, trace_id=trace_id)

    def intervals(self, seconds: float, tokens: int, trace_id: str) -> None:
        """For `RequestTimes`: `tokens` came `seconds` after those before."""
        self._between_tokens.observe(seconds / tokens, tokens, trace_id)

    def placed(self, seconds: float, trace_id: str) -> None:
        """For `RequestTimes`."""
        self._queue_time.observe(seconds, trace_id=trace_id)

    def finished(self, reason: FinishReason, seconds: float, trace_id: str) -> None:
        """For `RequestTimes`."""
        self._finished[reason].add()
        self._duration.observe(seconds, trace_id=trace_id)

    def failed(self, code: str) -> None:
        """For `RequestTimes`; also for a request that ends before it has any, with a gRPC status by name."""
        self._failed.get(code.lower(), self._failed["unknown"]).add()


def _role(role: object) -> str:
    return Service.VERIFIER.value if isinstance(role, ModelInfo) else Service.DRAFTER.value


class RequestTimes:
    """One request on its way; every `now` is the clock's seconds. It ends once: what is told of an end after the first is ignored."""

    __slots__ = ("_arrived", "_ended", "_latest", "_metrics", "_placed", "_trace_id")

    def __init__(self, metrics: CoordinatorMetrics, arrived: float, trace_id: str) -> None:
        self._metrics = metrics
        self._arrived = arrived
        self._latest: float | None = None
        self._trace_id = trace_id
        self._placed = False
        self._ended = False

    def placed(self, now: float) -> None:
        """It has a place on a verifier; only the first counts, should there be several."""
        if self._metrics.on and not self._placed:
            self._placed = True
            self._metrics.placed(now - self._arrived, self._trace_id)

    def tokens(self, count: int, now: float) -> None:
        """A burst of tokens came from the verifier."""
        if not self._metrics.on or not count:
            return
        if self._latest is None:
            self._metrics.first_token(now - self._arrived, self._trace_id)
        else:
            self._metrics.intervals(now - self._latest, count, self._trace_id)
        self._latest = now

    def finished(self, reason: FinishReason, now: float) -> None:
        """It ended with a text."""
        if not self._ended:
            self._ended = True
            self._metrics.finished(reason, now - self._arrived, self._trace_id)

    def failed(self, code: str) -> None:
        """It ended with a gRPC status, by name in either case."""
        if not self._ended:
            self._ended = True
            self._metrics.failed(code)
