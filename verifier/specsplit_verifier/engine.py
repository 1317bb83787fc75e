"""The engine thread: takes events in, has the target step, hands results out.

    drain the inbox  →  admit  →  choose  →  step  →  hand out
         ↑                            └── nothing worth stepping: wait for the next event ──┐
         └──────────────────────────────────────────────────────────────────────────────────┘

Everything about sessions and mirrors is touched by this one thread only, so nothing here is locked. The forward runs on a thread of its
own; while it does, this one takes in what drafters send, so that the next step finds the mirrors up to date. Every other event
waits until the step is over.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from specsplit.clock import Clock
from specsplit.errors import SpecsplitError
from specsplit.model.pages import PageTable
from specsplit.settings import VerifierSettings
from specsplit.speculation import Draft
from specsplit.values import Plan
from specsplit_verifier.cost import StepCost
from specsplit_verifier.drafting import Drafting
from specsplit_verifier.events import (
    Cancel,
    DrafterLost,
    FromDrafter,
    Inbound,
    NewPlan,
    Outbox,
    Output,
    Ran,
    Roster,
    Sends,
    Stop,
    Submit,
)
from specsplit_verifier.feed import FeatureSource, FeedLimits
from specsplit_verifier.meter import Meter, chunk_steps, session_steps
from specsplit_verifier.record import EngineStatistics, StepRecord, StepReport
from specsplit_verifier.scheduler import Batch, Scheduler
from specsplit_verifier.session import Session
from specsplit_verifier.stepper import Forward, Prepared, Stepper, StepResult
from specsplit_verifier.watching import watched_steps, watched_trees

_log = logging.getLogger(__name__)
RECORDS_KEPT = 8192


class Engine:
    """Owns the target. `post` is the only door in and may be called from any thread."""

    def __init__(self, stepper: Stepper, settings: VerifierSettings, outbox: Outbox, clock: Clock) -> None:
        target = stepper.target
        self._stepper = stepper
        self._outbox = outbox
        self._clock = clock
        self._own_plan: Plan = settings.plan
        self._default_plan: Plan = settings.plan
        self._info = target.info
        self._pool = target.pool
        self._scheduler = Scheduler(
            target.info, target.pool, max_sessions=settings.max_sessions, step_token_budget=settings.step_token_budget
        )
        source = FeatureSource(stepper.extractor.recipe, _feed_limits(settings))
        self._drafting = Drafting(target.info.vocabulary, settings.max_nodes, source)
        self._cost = StepCost()
        self._inbox: queue.SimpleQueue[Inbound] = queue.SimpleQueue()
        self._outputs: list[tuple[int, Output]] = []
        self._drafts: Sends = []
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._model_thread = ThreadPoolExecutor(1, "model")
        self._stopping = False
        self._steps = 0
        self._meter = Meter()
        self.records: deque[StepRecord] = deque(maxlen=RECORDS_KEPT)
        """The latest steps, oldest first."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, event: Inbound) -> None:
        """Hand an event to the thread."""
        self._inbox.put(event)

    def stop(self) -> None:
        """End the thread after the step in flight, and wait for it."""
        self.post(Stop())
        self._thread.join()
        self._model_thread.shutdown()

    def statistics(self) -> EngineStatistics:
        """How things stand; a moment old when read from another thread."""
        scheduler = self._scheduler
        return EngineStatistics(
            len(scheduler.running),
            len(scheduler.waiting),
            self._pool.free_pages,
            self._pool.total_pages,
            self._steps,
            self._cost.mean_s * 1e3 if self._steps else 0.0,
        )

    def _run(self) -> None:
        try:
            while self._drain(block_s=0.0):
                self._turn()
        except Exception:  # noqa: BLE001 (the edge of a thread: logged, and told to everyone who waits)
            _log.exception("the engine thread died")
            self._outbox.died()

    def _turn(self) -> None:
        self._admit()
        now = self._clock.now()
        self._drafts += self._drafting.retry(self._scheduler.running.values(), now)
        choice = self._scheduler.choose(now, self._cost, self._drafting.patience)
        self._hand_out()
        if isinstance(choice, Batch):
            self._step(choice, now)
            return
        self._drain(block_s=choice.seconds)
        if choice.seconds is None:
            self._meter.restart()  # it was idle: there is no gap to account for

    def _drain(self, block_s: float | None) -> bool:
        """Handle what is in the inbox; wait at most `block_s` (None: for ever) for a first event. False once told to stop."""
        try:
            if block_s == 0.0:
                event = self._inbox.get_nowait()
            else:
                with self._meter.waiting():
                    event = self._inbox.get(timeout=block_s)
            while True:
                self._handle(event)
                event = self._inbox.get_nowait()
        except queue.Empty:
            return not self._stopping

    def _handle(self, event: Inbound) -> None:
        match event:
            case Submit():
                self._submit(event)
            case Cancel():
                session = self._scheduler.find(event.session)
                if session is not None:
                    self._end(session)
            case FromDrafter():
                self._drafts += self._drafting.grown(event, self._scheduler.running, self._clock.now())
            case DrafterLost():
                _log.warning("drafter %s lost: %s", event.address, event.why)
                self._drafts += self._drafting.lost(event.address, self._scheduler.running.values(), self._clock.now())
            case Roster():
                self._drafts += self._drafting.roster(
                    event.drafters, self._scheduler.running.values(), self._clock.now()
                )
            case NewPlan():
                self._replan(event.plan)
            case Stop():
                self._stopping = True
            case Ran():
                raise RuntimeError("a forward ended that nobody waits for")

    def _submit(self, event: Submit) -> None:
        request = event.request
        try:
            plan = request.plan.over(self._default_plan)
            room = max(plan.num_draft_tokens, request.plan.over(self._own_plan).num_draft_tokens)
            limit = self._scheduler.limit_of(len(request.tokens), request.stopping.max_tokens, room)
            own_ends = () if request.stopping.ignore_eos else self._info.eos_token_ids
            session = Session(
                event.session,
                request,
                plan,
                limit,
                frozenset((*request.stopping.stop_token_ids, *own_ends)),
                PageTable(self._pool),
                room=room,
                traceparent=event.traceparent,
            )
            self._scheduler.submit(session)
        except SpecsplitError as error:
            self._outputs.append((event.session, error))

    def _replan(self, plan: Plan) -> None:
        """Another default plan: sessions that are here follow it too. No step is in flight."""
        self._default_plan = plan
        now, running = self._clock.now(), self._scheduler.running.values()
        short = sum(session.follow(plan) for session in (*self._scheduler.waiting, *running))
        for session in running:
            self._drafts += self._drafting.resume(session, now)
        _log.info("the default plan is now %s", plan)
        if short:
            _log.warning(
                "%d sessions have no KV pages for num_draft_tokens = %d and go on with what they began with; later ones have them",
                short,
                plan.num_draft_tokens,
            )

    def _admit(self) -> None:
        for session in self._scheduler.admit():
            self._drafts += self._drafting.admit(session, self._clock.now())

    def _step(self, batch: Batch, began: float) -> None:
        """One step, from the choice of its `batch`, which was at `began`, to the hand-over."""
        self._drafting.stepping(batch.decoding, began)
        prepared = self._stepper.prepare(batch)
        forward, put_off = self._run_model(prepared)
        trees = watched_trees(prepared, self._outbox.watched)
        result = self._stepper.conclude(prepared, forward)
        watching = self._outbox.watching
        sessions = session_steps(result) if watching else []
        self._settle(result, self._clock.now())
        self._steps += 1
        record = self._meter.record(result, began, self._drafting.take_toll())
        self.records.append(record)
        watched = watched_steps(result, trees)
        self._hand_out(StepReport(record, sessions, chunk_steps(result), watched) if watching else None)
        self._meter.handed_out()
        self._cost.observe(result.tokens, result.forward_s)
        for event in put_off:
            self._handle(event)

    def _run_model(self, prepared: Prepared) -> tuple[Forward, list[Inbound]]:
        """Run the forward on the model thread, taking in grows meanwhile. Every other event is put off until the step is over."""
        self._model_thread.submit(self._stepper.run, prepared).add_done_callback(lambda future: self.post(Ran(future)))
        self._stepper.foresee(prepared)
        put_off: list[Inbound] = []
        while not isinstance(event := self._inbox.get(), Ran):
            if isinstance(event, FromDrafter) and not any(isinstance(other, DrafterLost) for other in put_off):
                self._handle(event)
            else:
                put_off.append(event)
        return event.forward.result(), put_off

    def _settle(self, result: StepResult, now: float) -> None:
        """What a step has brought goes to callers and drafters."""
        for session, _, verdict in result.verdicts:
            if verdict.output is not None:
                self._outputs.append((session.id, verdict.output))
            if verdict.finished is not None:
                self._outputs.append((session.id, verdict.finished))
                self._end(session)
            elif verdict.commit is not None and session.drafter is not None:
                self._drafts.append((session.drafter, session.id, verdict.commit))
                self._drafting.committed(session, verdict.hit is True, now)
        for session, draft, error in result.failed:
            self._fail(session, draft, error)
        for session, features in result.features:
            self._drafts += self._drafting.computed(session, features, now)

    def _fail(self, session: Session, draft: Draft, error: SpecsplitError) -> None:
        """A step gave a session no token. What was drafted may be at fault (masked NaN is still NaN): the next step does without."""
        if len(draft.tokens) > 1:
            self._drafts += self._drafting.give_up(session, error)
            return
        _log.error("session %d ends: %s", session.id, error)
        self._outputs.append((session.id, error))
        self._end(session)

    def _end(self, session: Session) -> None:
        self._drafts += self._drafting.close(session)
        self._scheduler.remove(session)

    def _hand_out(self, report: StepReport | None = None) -> None:
        if self._outputs or self._drafts or report is not None:
            outputs, drafts = self._outputs, self._drafts
            self._outputs, self._drafts = [], []
            self._outbox.deliver(outputs, drafts, report)


def _feed_limits(settings: VerifierSettings) -> FeedLimits:
    """One event of features takes a quarter of a message, so that other events find room beside it."""
    return FeedLimits(settings.feature_window, settings.feature_retention, settings.max_message_bytes // 4)
