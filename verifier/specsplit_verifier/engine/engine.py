"""The engine thread: takes events in, has the target step, hands results out.

    drain the inbox  →  plan  →  run the step  →  commit
         ↑                └── nothing worth stepping: send, wait for the next event ──┐
         └────────────────────────────────────────────────────────────────────────────┘

While a step runs another thread stands in for this one (`Listener`): it tells everybody of the step before, so that what is made of
that, for callers, drafters and telemetry, is made while the device works. And it takes in what drafters send: what they have read of
features is answered, and what they have grown is queued for the mirrors, which are brought up to date shortly before the step should be
over, so that little is left for `commit`. Every other event waits until the step is over.

What is stepped when is the `Pacer`'s: a rank of a group takes turns with the others, and does nothing while its group is parked (`Rank`).

Everything about sessions and mirrors is touched by whichever of the two holds the lock of the listener.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from specsplit.clock import Clock
from specsplit.errors import RankLost
from specsplit.features import FeatureNeed
from specsplit.host import host_of
from specsplit.membership import StartWave
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.pages.pool import PagePool
from specsplit.model.pages.states import RecurrentStates
from specsplit.model_thread import ModelThread
from specsplit.ranks.rank import Rank
from specsplit.settings import VerifierSettings
from specsplit.values import Host, ModelInfo
from specsplit_verifier.drafters.pool import DrafterPool
from specsplit_verifier.engine.core import EngineCore
from specsplit_verifier.engine.inbox import Inbox
from specsplit_verifier.engine.listener import Listener
from specsplit_verifier.engine.pacer import Alone, InTurns
from specsplit_verifier.engine.statistics import EngineStatistics
from specsplit_verifier.engine.watchdog import Watchdog
from specsplit_verifier.engine.weights import take_weights
from specsplit_verifier.policy.adaptive.choice import controller_for
from specsplit_verifier.policy.planner import Pause, Planner
from specsplit_verifier.records.events import (
    BeginProfile,
    EndProfile,
    FlushPages,
    HoldSessions,
    Inbound,
    Outbox,
    Stop,
    TakeWeights,
    UnwatchBlocks,
    WatchBlocks,
    answer,
)
from specsplit_verifier.records.feed import FeatureSource, FeedLimits, Recipe
from specsplit_verifier.records.step import StepInput, StepOutput, StepResult
from specsplit_verifier.schedule.kv_cache_manager import KVCacheManager
from specsplit_verifier.schedule.scheduler import Scheduler
from specsplit_verifier.sessions.own_lookup import Lookup
from specsplit_verifier.target.prompt_logprobs import told_rows
from specsplit_verifier.target.runner import TargetRunner

_log = logging.getLogger(__name__)

APPLIED_AT = 0.8
"""After this share of a step's expected time the mirrors take in what was grown meanwhile; what comes later waits for the commit."""


class Engine:
    """Owns the target. `post` is the only door in and may be called from any thread."""

    def __init__(
        self,
        runner: TargetRunner,
        settings: VerifierSettings,
        outbox: Outbox,
        clock: Clock,
        inbox: Inbox | None = None,
        thread: ModelThread | None = None,
    ) -> None:
        """With an `inbox` that turns the clock where it would wait, all of this runs in the clock's time.

        `thread`: on which the target was loaded; it ends with the engine. None: one of its own.
        """
        self._outbox = outbox
        self.rank = Rank(runner.lockstep, clock)
        target, recipe, grouped = runner.target, runner.extractor.recipe, not self.rank.alone
        self._core = core_of(
            target.info,
            target.pool,
            recipe,
            settings,
            clock,
            grouped=grouped,
            states=target.states,
            host=host_of(settings),
        )
        for profiled in runner.profile:
            self._core.cost.observe(*profiled)
        self._inbox = Inbox() if inbox is None else inbox
        self._runner = runner
        self._pacer = Alone(self._core) if self.rank.alone else InTurns(self._core, self.rank)
        self._listener = Listener(self._core, self._send, self._inbox, clock)
        self._thread = thread or ModelThread("engine")
        own = settings.started_together[1] == 1 and "step_timeout_s" not in settings.model_fields_set
        self.watchdog = Watchdog(clock, settings.step_timeout_s, learns=own)
        self._result: StepResult | None = None
        """What the last step was, while nobody has been told."""
        self._stopping = False
        self._abandoned = False
        """True if nobody waits any more for the step that hangs: whatever comes of it goes nowhere."""

    def start(self) -> None:
        """Have the thread step from now on."""
        self._thread.start(self._run)

    def post(self, event: Inbound) -> None:
        """Hand an event to the thread."""
        self._inbox.put(event)

    def stop(self) -> None:
        """End the thread after the step in flight, and wait for it; not for a step that hangs."""
        self.post(Stop())
        while not self._thread.idle(0.1) and not self.watchdog.expired:
            pass
        self._abandoned = not self._thread.idle(0.0)
        self._thread.close()
        self._inbox.close()

    @property
    def target(self) -> CausalLM:
        """The target, which the thread alone may run."""
        return self._runner.target

    @property
    def weights_version(self) -> int:
        """Which weights the target has; see `TargetRunner`. Any thread may ask."""
        return self._runner.weights_version

    def statistics(self) -> EngineStatistics:
        """How things stand; a moment old when read from another thread."""
        return self._core.statistics()

    def _run(self) -> None:
        with self._listener.lock:
            self._work()

    def _work(self) -> None:
        try:
            while self._drain():
                self._step()
            self._send()
            self.rank.end()
        except RankLost as error:
            self._die(str(error))
        except BaseException as error:  # noqa: BLE001 (the edge of a thread: logged, and told to everyone who waits)
            _log.exception("the engine thread died")
            self._die(self.rank.fail(f"{type(error).__name__}: {error}"))

    def _die(self, why: str) -> None:
        if self._abandoned:
            return
        try:
            self._send()
        finally:
            self._outbox.died(why)

    def _step(self) -> None:
        step = self._pacer.choose()
        pause = step if isinstance(step, Pause) else self._make(step)
        if pause is not None:
            self._wait(pause)

    def _make(self, step: StepInput) -> Pause | None:
        """Run and commit a step -> how long to wait behind it; None: not at all."""
        output = self._run_model(step)
        self._result, pause = self._pacer.commit(step, output, self._outbox.watched)
        return pause

    def _wait(self, pause: Pause) -> None:
        """Wait for an event, once everybody has been told of what there is: who was refused hears of it without a step."""
        self._send()
        with self._core.stopwatch.waiting():
            while pause.seconds is None and self._inbox.empty() and self._runner.prepare():
                pass
            self._inbox.wait(pause.seconds)
        if pause.seconds is None:
            self._core.stopwatch.restart()

    def _drain(self) -> bool:
        """Handle what is in the inbox. False once told to stop."""
        while (event := self._inbox.take()) is not None:
            self._handle(event)
        return not self._stopping

    def _handle(self, event: Inbound) -> None:
        match event:
            case Stop():
                self._stopping = True
            case StartWave():
                self.rank.start(event.number)
            case BeginProfile():
                answer(event.answered, partial(self._runner.profiler.start, event.wanted))
            case EndProfile():
                answer(event.answered, self._runner.profiler.stop)
            case HoldSessions():
                self._core.hold(held=event.held)
            case TakeWeights():
                take_weights(event, self._core, self._runner)
            case FlushPages() | WatchBlocks() | UnwatchBlocks():
                self._core.handle_cache(event)
            case _:
                self._core.handle(event)

    def _run_model(self, step: StepInput) -> StepOutput:
        """Run a step. Meanwhile what the last one brought leaves, and grows are taken in; other events wait."""
        expected_s = self._core.expected_s(step)
        with self.watchdog.over(step.tokens, expected_s), self._listener.during_step(APPLIED_AT * expected_s):
            return self._runner.run(step)

    def _send(self) -> None:
        """What has come up leaves in one hop; what the last step was goes along if somebody wants to know."""
        outputs, sends = self._core.outgoing()
        result, self._result = self._result, None
        if self._abandoned:
            return
        wanted = result if self._outbox.watching else None
        if outputs or sends or wanted is not None:
            self._outbox.deliver(outputs, sends, wanted)


def core_of(
    info: ModelInfo,
    pool: PagePool,
    recipe: Callable[[FeatureNeed], Recipe],
    settings: VerifierSettings,
    clock: Clock,
    planner: Planner | None = None,
    *,
    grouped: bool = False,
    states: RecurrentStates | None = None,
    host: Host | None = None,
    lookup_clock: Clock | None = None,
) -> EngineCore:
    """Put together all of an engine but its threads and its model (`info`, `pool`, `recipe`); without `planner` that of the settings.

    `grouped`: it is of a rank of a group. `states`: those of its recurrent layers; None: it has none. `host`: None: drafters are not told.
    `lookup_clock`: measures what lookup beside drafters takes; None: `clock` does.
    """
    if states is not None and settings.prefix_cache:
        states.snapshots.limit_bytes = settings.prefix_states_bytes
    sharing, feature_bytes = settings.prefix_cache, settings.prefix_features_bytes
    kv = KVCacheManager(pool, prefix_cache=sharing, feature_bytes=feature_bytes, states=states)
    scheduler = Scheduler(info, kv, max_sessions=settings.max_sessions)
    # One event of features takes a quarter of a message, so that other events find room beside it.
    limits = FeedLimits(settings.feature_window, settings.feature_retention, settings.max_message_bytes // 4)
    features = FeatureSource(recipe, limits, kv.prefixes.features)
    lookup = Lookup(info.vocabulary, beside=settings.lookup_beside, clock=lookup_clock or clock)
    looking = lookup if settings.lookup else None
    drafters = DrafterPool(info.vocabulary, settings.max_nodes, features, host, lookup=looking)
    controllers = partial(controller_for, settings)
    most_nodes = None if states is None else states.most_nodes
    planner = planner or Planner(
        settings.plan,
        settings.step_token_budget,
        controllers,
        grouped=grouped,
        most_nodes=most_nodes,
        rest_trials=settings.rest_trials,
        roots_join=kv.roots_join,
        most_told=told_rows(info.vocabulary.size),
    )
    return EngineCore(scheduler, planner, drafters, clock)
