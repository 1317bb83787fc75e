"""Requests and members, as the coordinator counts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specsplit.membership import Cluster, Role
from specsplit.observe import metric_table as table
from specsplit.observe import vllm_table
from specsplit.observe.instruments import Counter
from specsplit.observe.metric import Metric, Service
from specsplit.observe.metrics.base import Metrics
from specsplit.values import FailoverCause, FinishReason, ModelInfo


class CoordinatorMetrics(Metrics):
    """Counts requests and members."""

    def __init__(self, *, on: bool, clients: Sequence[str] = ()) -> None:
        """`clients`: those that have series of their own."""
        named = (*dict.fromkeys((*clients, *table.CLIENT.values)),)
        super().__init__(Service.COORDINATOR, on=on, fixed={table.CLIENT.name: named})
        made = self.instruments
        self._finished = {reason: made.counter(table.REQUESTS_FINISHED, reason.value) for reason in FinishReason}
        self._failed = {code: made.counter(table.REQUESTS_FAILED, code) for code in table.CODE.values}
        self._lost = {role: made.counter(table.MEMBERS_LOST, role) for role in table.ROLE.values}
        self._failovers = {cause: made.counter(table.SESSION_FAILOVERS, cause.value) for cause in FailoverCause}
        self._resumed = made.counter(table.RESUMED_TOKENS)
        self._first_token = made.histogram(table.TIME_TO_FIRST_TOKEN)
        self._between_tokens = made.histogram(table.INTER_TOKEN_LATENCY)
        self._duration = made.histogram(table.REQUEST_DURATION)
        self._queue_time = made.histogram(table.QUEUE_TIME)

    def under_vllm_names(self, model: str) -> None:
        """Expose what vLLM has too under its names as well."""
        made, labels = self.instruments, (model, "0")
        made.also(vllm_table.NUM_REQUESTS_WAITING, labels, made.gauge(table.QUEUED_REQUESTS))
        made.also(vllm_table.FIRST_TOKENS, labels, self._first_token)

    def used(self, client: str, requests: int, tokens: int) -> None:
        """Count requests of a client that have ended, and the tokens of their prompts and answers."""
        self._of_client(table.CLIENT_REQUESTS, client).add(requests)
        self._of_client(table.CLIENT_TOKENS, client).add(tokens)

    def _of_client(self, metric: Metric, client: str) -> Counter:
        """The client's own series, or that of all who have none."""
        try:
            return self.instruments.counter(metric, client)
        except KeyError:
            return self.instruments.counter(metric, *table.CLIENT.values)

    def member_lost(self, role: Role) -> None:
        """A member with this `ModelInfo` or `DrafterInfo` went without draining."""
        self._lost[_role(role)].add()

    def watch(self, read: Callable[[], Cluster]) -> None:
        """Have `read` called on the event loop, before every scrape, to look the cluster up."""
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

    def watch_quota_store(self, read: Callable[[], bool]) -> None:
        """Have `read` called on the event loop, before every scrape, to look whether the quota store decides."""
        decides = self.instruments.gauge(table.QUOTA_STORE_DECIDES)
        self._watchers.append(lambda: decides.set(read()))

    def placed(self, seconds: float, trace_id: str = "") -> None:
        """A request has a place on a verifier, so long after it arrived. `trace_id`, here and below: 32 hex digits if it is traced."""
        self._queue_time.observe(seconds, trace_id=trace_id)

    def first_token(self, seconds: float, trace_id: str = "") -> None:
        """Note that the first tokens of a request came, so long after it arrived."""
        self._first_token.observe(seconds, trace_id=trace_id)

    def intervals(self, seconds: float, tokens: int, trace_id: str = "") -> None:
        """More tokens of a request came, so long after those before: a burst of k tokens is k intervals."""
        self._between_tokens.observe(seconds / tokens, tokens, trace_id)

    def failed_over(self, cause: FailoverCause, tokens: int) -> None:
        """A session goes on elsewhere, with so many tokens that were generated already."""
        self._failovers[cause].add()
        self._resumed.add(tokens)

    def resumed(self, tokens: int) -> None:
        """A caller came with so many tokens of its answer."""
        self._resumed.add(tokens)

    def finished(self, reason: FinishReason, seconds: float, trace_id: str = "") -> None:
        """Count a request that ended with a text, so long after it arrived."""
        self._finished[reason].add()
        self._duration.observe(seconds, trace_id=trace_id)

    def failed(self, code: str) -> None:
        """Count a request that ended with a gRPC status, by name in either case."""
        self._failed.get(code.lower(), self._failed["unknown"]).add()


def _role(role: Role) -> str:
    return Service.VERIFIER.value if isinstance(role, ModelInfo) else Service.DRAFTER.value
