"""Steps and what they brought, as a verifier counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate

from specsplit.observe import metric_table as table
from specsplit.observe import vllm_table
from specsplit.observe.instruments import Counter, Histogram, Instruments, Share
from specsplit.observe.metric import Metric, Service
from specsplit.observe.metric_table import DEEPEST, DEPTH
from specsplit.observe.metrics.base import Metrics
from specsplit.observe.metrics.turns import Turns
from specsplit.records import PlanRecord, StateBytes, StepRecord, StreamStatistics
from specsplit.values import Arm, Control, Load, Miss

MOST_STEPS = 64
"""Deepest node below the root that a plan allows to be verified."""


_ESTIMATES = {
    "rate": table.ADAPTIVE_EXPECTED_RATE,
    "static_rate": table.ADAPTIVE_STATIC_RATE,
    "accept_length": table.ADAPTIVE_ACCEPT_LENGTH,
    "step_s": table.ADAPTIVE_STEP,
    "token_s": table.ADAPTIVE_TOKEN,
}
"""By field of an estimate."""


class ByDepth:
    """Counters by depth of paths that begin below the root: a path that ends at depth d counts at every depth up to d.

    A step notes where a path ends; how often each depth was on one is added up before a scrape.
    """

    def __init__(self, made: Instruments, metric: Metric) -> None:
        self.ends = [0] * (MOST_STEPS + 1)
        """By depth, 0 for no path, how many paths ended there."""
        self._counters = [made.counter(metric, depth) for depth in DEPTH.values]

    def passed(self) -> list[int]:
        """How many paths reached each depth, from 1 on."""
        return list(accumulate(reversed(self.ends[1:])))[::-1]

    def add_up(self) -> None:
        """Bring the counters up to date."""
        passed = self.passed()
        for counter, count in zip(self._counters, [*passed[: DEEPEST - 1], sum(passed[DEEPEST - 1 :])], strict=True):
            counter.stand_at(count)


class _Costs:
    """Where the time of steps goes, and how many tokens they read."""

    def __init__(self, made: Instruments) -> None:
        self._steps = made.counter(table.STEPS)
        self._batch_tokens = made.counter(table.BATCH_TOKENS)
        self._prefill_tokens = made.counter(table.PREFILL_TOKENS)
        self._recomputed_tokens = made.counter(table.RECOMPUTED_TOKENS)
        self._cached_tokens = made.counter(table.CACHED_TOKENS)
        self._step_time = made.histogram(table.STEP_TIME)
        self._parts = [made.histogram(part) for part in (table.WAIT_TIME, table.VERIFY_TIME, table.HOST_TIME)]
        self._arms = {arm: made.counter(table.ARM_TIME, arm.value) for arm in Arm}

    def count(self, step: StepRecord) -> None:
        """Count one step."""
        self._steps.add()
        self._batch_tokens.add(step.tokens)
        self._prefill_tokens.add(step.prefill_tokens)
        self._recomputed_tokens.add(step.recomputed_tokens)
        self._cached_tokens.add(step.kv.cached_tokens)
        parts_us = (step.waited_us, step.forward_us, step.host_us)
        self._step_time.observe(sum(parts_us) * 1e-6)
        for histogram, part_us in zip(self._parts, parts_us, strict=True):
            histogram.observe(part_us * 1e-6)
        if step.arm is not None:
            self._arms[step.arm].add(sum(parts_us) * 1e-6)


class _Meanwhile:
    """Counts what happened between two steps: answers of drafters, and what was lost."""

    def __init__(self, made: Instruments) -> None:
        self._round_trip = made.histogram(table.ROUND_TRIP)
        self._wasted = [made.counter(table.WASTED_NODES, cause) for cause in ("unverified", "late")]
        self._lookups = [made.counter(table.LOOKUP_BESIDE, arm.value) for arm in (Arm.WORK, Arm.REST)]
        self._failovers = made.counter(table.FAILOVERS)
        self._hand_overs = made.counter(table.HAND_OVERS)
        self._preemptions = made.counter(table.PREEMPTIONS)

    def count(self, step: StepRecord) -> None:
        """Count what a step tells of it."""
        for counter, nodes in zip(self._wasted, (step.drafts.unverified_nodes, step.drafts.late_nodes), strict=True):
            counter.add(nodes)
        for counter, steps in zip(self._lookups, (step.drafts.lookups, step.drafts.lookup_rests), strict=True):
            counter.add(steps)
        self._failovers.add(step.drafts.failovers)
        self._hand_overs.add(step.drafts.hand_overs)
        self._preemptions.add(step.kv.preemptions)
        for seconds in step.drafts.round_trips_s:
            self._round_trip.observe(seconds)


class _Speculation:
    """Counts what the steps of sessions brought."""

    def __init__(self, made: Instruments) -> None:
        self._session_steps = made.counter(table.SESSION_STEPS)
        self._drafted = made.counter(table.DRAFTED)
        self._accepted = made.counter(table.ACCEPTED)
        self._rejected = made.counter(table.WASTED_NODES, "rejected")
        self._bonus = made.counter(table.BONUS)
        self._generated_tokens = made.counter(table.GENERATED_TOKENS)
        self._reached, self.accepted_to = ByDepth(made, table.REACHED_DEPTH), ByDepth(made, table.ACCEPTED_DEPTH)
        self._hits = made.counter(table.HITS)
        self._misses = {cause: made.counter(table.MISSES, cause.value) for cause in Miss}
        self._accept_length = made.histogram(table.ACCEPT_LENGTH)

    def add_up(self) -> None:
        """Bring what is counted by depth up to date."""
        self._reached.add_up()
        self.accepted_to.add_up()

    def count(self, step: StepRecord) -> None:
        """Count the sessions of one step."""
        drafted, accepted, bonus = step.drafted, step.accepted, 0
        for session in step.sessions:
            correct = session.accepted
            bonus += session.committed > correct
            if session.miss is not None:
                self._misses[session.miss].add()
            self._reached.ends[session.depth] += 1
            self.accepted_to.ends[correct] += 1
            if session.speculates:
                self._accept_length.observe(correct + 1)
        self._session_steps.add(len(step.sessions))
        self._drafted.add(drafted)
        self._accepted.add(accepted)
        self._rejected.add(drafted - accepted)
        self._generated_tokens.add(step.committed)
        self._bonus.add(bonus)
        self._hits.add(step.hits)


class VerifierMetrics(Metrics):
    """Counts steps and what they brought."""

    def __init__(self, *, on: bool) -> None:
        super().__init__(Service.VERIFIER, on=on)
        made = self.instruments
        self._costs, self._meanwhile = _Costs(made), _Meanwhile(made)
        self._speculation = _Speculation(made)
        self._turns = Turns(made)
        self._watchers.append(self._speculation.add_up)
        self._num_steps = made.gauge(table.SPEC_NUM_STEPS)
        self._num_draft_tokens = made.gauge(table.SPEC_NUM_DRAFT_TOKENS)
        self._prompt_tokens = made.counter(table.PROMPT_TOKENS)
        self._drafters_lost = made.counter(table.DRAFTERS_LOST)

    def under_vllm_names(self, model: str, rank: int = 0) -> Histogram:
        """Expose what vLLM has too under its names as well. Nothing here fills the histogram, `vllm:inter_token_latency_seconds`."""
        made, labels = self.instruments, (model, str(rank))
        usage = Share(made.gauge(table.KV_PAGES_USED), made.gauge(table.KV_PAGES))
        intervals = Histogram(vllm_table.INTERVALS.buckets)
        made.also(vllm_table.NUM_DRAFTS, labels, made.counter(table.REACHED_DEPTH, DEPTH.values[0]))
        made.also(vllm_table.NUM_DRAFT_TOKENS, labels, made.counter(table.DRAFTED))
        made.also(vllm_table.NUM_ACCEPTED_TOKENS, labels, made.counter(table.ACCEPTED))
        made.also(vllm_table.NUM_REQUESTS_RUNNING, labels, made.gauge(table.RUNNING_SESSIONS))
        made.also(vllm_table.NUM_REQUESTS_WAITING, labels, made.gauge(table.WAITING_SESSIONS))
        made.also(vllm_table.KV_CACHE_USAGE, labels, usage)
        made.also(vllm_table.INTERVALS, labels, intervals)
        self._show_positions(labels)
        return intervals

    def _show_positions(self, labels: tuple[str, ...]) -> None:
        shown: list[Counter] = []

        def look() -> None:
            for position, accepted in enumerate(self._speculation.accepted_to.passed()):
                if position == len(shown) and (accepted or position < DEEPEST):
                    shown.append(Counter())
                    place = (*labels, str(position))
                    self.instruments.also(vllm_table.NUM_ACCEPTED_TOKENS_PER_POS, place, shown[position])
                if position < len(shown):
                    shown[position].stand_at(accepted)

        look()
        self._watchers.append(look)

    def step(self, step: StepRecord) -> None:
        """Count a step that is over; of one that was run for other ranks alone no more than what happened meanwhile."""
        if not self.on:
            return
        if not step.idle:
            self._costs.count(step)
        self._meanwhile.count(step)
        if step.turn is not None:
            self._turns.count(step.turn, idle=step.idle)
        if sessions := step.sessions:
            self._speculation.count(step)
            speculating = [s.shown_plan for s in sessions if s.speculates]
            self._num_steps.set(sum(plan.num_steps for plan in speculating) / len(sessions))
            self._num_draft_tokens.set(sum(plan.num_draft_tokens for plan in speculating) / len(sessions))

    def session(self, prompt_tokens: int) -> None:
        """Count a session that has come."""
        self._prompt_tokens.add(prompt_tokens)

    def drafter_lost(self) -> None:
        """Count a stream to a drafter that is gone, or could not be opened."""
        self._drafters_lost.add()

    def watch(self, read: Callable[[], Load]) -> None:
        """Have `read` called on the event loop, before every scrape, to look up how the engine stands."""
        made = self.instruments
        running, waiting = made.gauge(table.RUNNING_SESSIONS), made.gauge(table.WAITING_SESSIONS)
        pages, used = made.gauge(table.KV_PAGES), made.gauge(table.KV_PAGES_USED)
        windows, in_windows = made.gauge(table.WINDOW_PAGES), made.gauge(table.WINDOW_PAGES_USED)

        def look() -> None:
            load = read()
            windows.set(load.window_pages)
            in_windows.set(load.window_pages - load.free_window_pages)
            running.set(load.sessions - load.waiting)
            waiting.set(load.waiting)
            pages.set(load.total_pages)
            used.set(load.total_pages - load.free_pages)

        self._watchers.append(look)

    def watch_states(self, read: Callable[[], StateBytes]) -> None:
        """Have `read` called on the event loop, before every scrape, to look up what states of recurrent layers take."""
        gauges = [self.instruments.gauge(table.STATE_BYTES, of) for of in table.STATES_OF.values]

        def look() -> None:
            for gauge, nbytes in zip(gauges, read(), strict=True):
                gauge.set(nbytes)

        self._watchers.append(look)

    def watch_plan(self, read: Callable[[], PlanRecord], control: Callable[[], Control]) -> None:
        """Have both called on the event loop, before every scrape, to look up the default plan's switches, estimate and controller."""
        made = self.instruments
        switches = made.counter(table.PLAN_SWITCHES)
        controllers = {name: made.gauge(table.ADAPTIVE_CONTROLLER, name) for name in table.CONTROLLER.values}
        estimates = {name: made.gauge(metric) for name, metric in _ESTIMATES.items()}

        def look() -> None:
            now, controller = read(), control().adaptive
            switches.stand_at(now.switches)
            for name, gauge in controllers.items():
                gauge.set(name == controller)
            for name, gauge in estimates.items():
                gauge.set(0.0 if now.estimate is None else getattr(now.estimate, name))

        self._watchers.append(look)

    def watch_streams(self, read: Callable[[], Iterable[StreamStatistics]]) -> None:
        """Have `read` called on the event loop, before every scrape, to look up the totals of streams to all drafters there ever were."""
        made = self.instruments
        sent, received = (made.counter(table.DRAFT_MESSAGES, direction) for direction in table.DIRECTION.values)
        bytes_sent, bytes_received = (
            made.counter(table.DRAFT_BYTES, direction) for direction in table.DIRECTION.values
        )
        feature_bytes, nodes = made.counter(table.FEATURE_BYTES), made.counter(table.NODES_RECEIVED)
        dropped = made.counter(table.DRAFTERS_DROPPED)

        def look() -> None:
            streams = list(read())
            sent.stand_at(sum(stream.messages_sent for stream in streams))
            received.stand_at(sum(stream.messages_received for stream in streams))
            bytes_sent.stand_at(sum(stream.bytes_sent for stream in streams))
            bytes_received.stand_at(sum(stream.bytes_received for stream in streams))
            feature_bytes.stand_at(sum(stream.feature_bytes_sent for stream in streams))
            nodes.stand_at(sum(stream.nodes_received for stream in streams))
            dropped.stand_at(sum(stream.drops for stream in streams))

        self._watchers.append(look)
