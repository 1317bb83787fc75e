"""Everything about sessions but threads: events in, steps planned and committed, what leaves for callers and drafters."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from specsplit.clock import Clock
from specsplit.errors import InvalidRequest, SpecsplitError
from specsplit.features import Features
from specsplit.membership import HandOver, PlanOrder, Roster
from specsplit.ranks.lockstep import REST_S, Agreed, Proposal
from specsplit.records import PlanRecord, TurnCosts
from specsplit.sessions import DecodeRequest, Preempted
from specsplit.speculation import Draft
from specsplit.values import Load, ModelInfo
from specsplit_verifier.drafters.pool import DrafterPool
from specsplit_verifier.engine.statistics import EngineStatistics
from specsplit_verifier.engine.stopwatch import Stopwatch
from specsplit_verifier.policy.cost import StepCost
from specsplit_verifier.policy.planner import Pause, Planner, Schedule
from specsplit_verifier.records.events import (
    CacheEvent,
    Cancel,
    Constrained,
    DrafterLost,
    FlushPages,
    FromDrafter,
    Output,
    Outputs,
    Sends,
    SessionEvent,
    UnwatchBlocks,
    WatchBlocks,
    answer,
)
from specsplit_verifier.records.feed import Recipe
from specsplit_verifier.records.step import SessionResult, StepInput, StepOutput, StepResult, TreeInput
from specsplit_verifier.records.undrafted import LATELY, Undrafted
from specsplit_verifier.schedule.scheduler import Scheduler
from specsplit_verifier.schedule.submissions import Submissions
from specsplit_verifier.sessions.session import Session
from specsplit_verifier.sessions.used_adapter import UsedAdapter

_log = logging.getLogger(__name__)
LONGEST_TOLD_S = 1000.0
"""The longest step that drafters are told of: the wire holds 32 bits of microseconds."""


class EngineCore:
    """Sessions from submission to their end. One thread at a time may be in it. From `schedule` to `commit` of a step no session ends."""

    def __init__(self, scheduler: Scheduler, planner: Planner, drafters: DrafterPool, clock: Clock) -> None:
        self._planner = planner
        self._scheduler = scheduler
        self._drafters = drafters
        self._clock = clock
        self._submissions = Submissions(scheduler, planner)
        self._outputs: Outputs = []
        self._steps = 0
        self._plan_switches = 0
        self._undrafted = Undrafted(LATELY)
        self.stopwatch = Stopwatch(clock)

    def statistics(self) -> EngineStatistics:
        """How things stand; a moment old when read from another thread."""
        scheduler, planner = self._scheduler, self._planner
        pool = scheduler.kv.pool
        windows = pool.windows
        load = Load(
            sessions=self.unfinished,
            waiting=len(scheduler.waiting),
            free_pages=scheduler.kv.free_pages,
            total_pages=pool.total_pages,
            steps=self._steps,
            step_ms=planner.cost.mean_s * 1e3 if self._steps else 0.0,
            page_size=pool.page_size,
            kv_window=pool.window or 0,
            layer_window=0 if windows is None else windows.window,
            window_pages=0 if windows is None else windows.total_pages,
            free_window_pages=0 if windows is None else windows.free_pages,
            adapters=scheduler.adapters,
        )
        return EngineStatistics(
            load=load,
            plan=PlanRecord(planner.shown(planner.default), self._plan_switches, planner.estimate()),
            drafters=self._drafters.records,
            token_s=planner.cost.token_s,
            prefixes=scheduler.kv.cache.recent.marks,
            no_drafts=planner.no_drafts(self._undrafted),
        )

    @property
    def cost(self) -> StepCost:
        """What a step costs, as it has been observed."""
        return self._planner.cost

    def outgoing(self) -> tuple[Outputs, Sends]:
        """What has come up for callers and for drafters since this was last asked. Who watches cached blocks is told of those."""
        outputs, self._outputs = self._outputs, []
        self._scheduler.kv.cache.blocks.tell()
        return outputs, self._drafters.outgoing()

    def _tell(self, session: int, *outputs: Output) -> None:
        """Have the caller of a session told."""
        self._outputs += [(session, output) for output in outputs]

    def handle_cache(self, event: CacheEvent) -> None:
        """Do what is wanted of the prefix cache. No step is in flight."""
        cache = self._scheduler.kv.cache
        match event:
            case FlushPages():
                answer(event.answered, cache.flush)
            case WatchBlocks():
                cache.blocks.watch(event)
            case UnwatchBlocks():
                cache.blocks.watch(None)

    def hold(self, *, held: bool) -> None:
        """Have sessions wait that have not begun, or no longer."""
        self._scheduler.held = held

    @property
    def begun(self) -> int:
        """Sessions that have begun and not ended."""
        return self._scheduler.begun

    def start_over(self, *, heads_rest: bool) -> None:
        """Everything is computed again from now on: no session keeps KV, drafts or features, and the prefix cache is empty.

        The sessions themselves go on with their tokens so far, before those that wait. No step is in flight. `heads_rest`: no head that is
        there now is used.
        """
        while self._scheduler.running:
            self._drafters.suspend(self._scheduler.preempt())
        self._scheduler.kv.cache.flush()
        if heads_rest:
            self._drafters.rest_heads()

    def adopt(self, info: ModelInfo) -> None:
        """The target has other adapters: sessions, all of which wait, go on with those of the same names, or end if there is none."""
        self._scheduler.info = info
        for session in list(self._scheduler.waiting):
            try:
                session.adapter = UsedAdapter.of(info, session.request.adapter)
                self._scheduler.kv.prefixes.forget(session)
            except InvalidRequest as error:
                self._tell(session.id, error)
                self._end(session)

    def handle(self, event: SessionEvent) -> None:
        """Take in an event. While a step is in flight only what drafters send may come."""
        running, now = self._scheduler.running, self._clock.now()
        match event:
            case DecodeRequest():
                self._tell(event.session, *self._submissions.submit(event))
            case Constrained():
                self._tell(event.request.session, *self._submissions.submit(event.request, event.grammar))
            case Cancel():
                session = self._scheduler.find(event.session)
                if session is not None:
                    self._end(session)
            case FromDrafter():
                self._drafters.received(event, running, now)
            case DrafterLost():
                what = "dropped" if event.dropped else "left" if event.left else "lost"
                _log.log(
                    logging.INFO if event.left else logging.WARNING, "drafter %s %s: %s", event.address, what, event.why
                )
                self._drafters.lost(event.address, running.values(), now)
            case Roster():
                self._drafters.roster(event.drafters, running.values(), now)
            case HandOver():
                self._drafters.hand_over(event, running.values(), now)
            case PlanOrder():
                self._order(event)

    def apply_grows(self) -> None:
        """Apply to the mirrors what drafters have grown, a step in flight or not."""
        self._drafters.apply_grows(self._scheduler.running.values())

    def schedule(self) -> StepInput | Pause:
        """Admit who fits, and choose the next step, or how long to wait for a better one."""
        now = self._clock.now()
        self.apply_grows()
        for session in self._scheduler.admit():
            self._drafters.resume(session, now)
        if self._planner.adapt(len(self._scheduler.running)):
            self._replan("as its controller chose")
        self._drafters.retry(self._scheduler.running.values(), now)
        schedule = self._choose(now)
        if isinstance(schedule, Pause):
            return schedule
        for session, plan in self._planner.resting_changes(session for session, _ in schedule.decoding):
            self._drafters.replan(session, plan, now)
        for session, _ in schedule.decoding:
            session.drafter.stepping(now)
        return self._scheduler.lay_out(schedule, now)

    def _choose(self, now: float) -> Schedule | Pause:
        """A step that there are pages for. While there are none, sessions are preempted, and another step is chosen among the others."""
        scheduler = self._scheduler
        while True:
            schedule = self._planner.schedule(list(scheduler.running.values()), now)
            if isinstance(schedule, Pause) or scheduler.allocate_pages(schedule):
                return schedule
            session = scheduler.preempt()
            _log.info("session %d is preempted, for want of KV pages", session.id)
            self._drafters.suspend(session)
            self._tell(session.id, Preempted())

    @property
    def unfinished(self) -> int:
        """Sessions that run or wait."""
        return len(self._scheduler.running) + len(self._scheduler.waiting)

    def propose(self, step: StepInput | Pause) -> StepInput:
        """Make a turn of a rank group of what was planned; where that is to wait, it brings no rows."""
        wanted = self._planner.wants(len(self._scheduler.running))
        proposal = Proposal(unfinished=self.unfinished, plan=wanted)
        if isinstance(step, StepInput):
            return replace(step, proposal=proposal)
        rest_s = REST_S if step.seconds is None else min(REST_S, step.seconds)
        return StepInput(planned_at=self._clock.now(), proposal=replace(proposal, rest_us=round(rest_s * 1e6)))

    def agree(self, agreed: Agreed) -> None:
        """A turn of the group is over, and its step is committed: every rank takes the plan that most sessions stand behind."""
        if self._planner.agree(agreed):
            self._replan("as the ranks of the group agreed")

    def commit_idle(self, step: StepInput, output: StepOutput, turn: TurnCosts) -> StepResult:
        """A step was run for other ranks alone."""
        return self._result(step, output, (), turn)

    def expected_s(self, step: StepInput) -> float:
        """Seconds that the forward of a step should take, going by those before it."""
        return self._planner.expected_s(step.tokens, step.kv_tokens)

    def commit(
        self, step: StepInput, output: StepOutput, watched: Collection[int] = (), turn: TurnCosts | None = None
    ) -> StepResult:
        """Settle what the target made of a step. Of sessions that are `watched` the result has the whole speculation.

        `turn`: which turn of a rank group it was.
        """
        running, now = self._scheduler.running, self._clock.now()
        self.apply_grows()  # first: it was grown for what the step went out with
        for chunk in step.chunks:
            if not chunk.recomputed and chunk.session not in output.failed:
                running[chunk.session].kv_length += chunk.num_tokens
        for number, piece in output.prompts:
            running[number].counters.told = piece.end
            self._tell(number, piece)
        for number, error in output.failed.items():
            self._tell(number, error)
            self._end(running[number])
        for tree in step.trees:
            if tree.session in output.no_pick:
                self._without_pick(running[tree.session], tree.draft)
        step_us = self._step_us(step)
        made = [tree for tree in step.trees if tree.session in output.accepted]
        sessions = [self._commit(tree, output, now, tree.session in watched) for tree in made]
        going_on = ((running[each.session], each.reroot) for each in sessions if each.finished is None)
        self._drafters.commit(going_on, step_us, self._planner.floor, self._planner.rate)
        self._hand_on(output.features, now)
        self._scheduler.kv.end_step(running.values())
        self._steps += 1
        result = self._result(step, output, sessions, turn)
        self._planner.observe(result)
        return result

    def _commit(self, tree: TreeInput, output: StepOutput, now: float, watched: bool) -> SessionResult:
        session = self._scheduler.running[tree.session]
        shown = self._planner.shown(session.plan)
        accepted = output.accepted[tree.session]
        result = session.commit(
            tree.draft,
            accepted,
            now,
            watched=watched,
            shown=shown,
            undrafted=tree.undrafted,
            explain=self._planner.no_drafts,
        )
        self._undrafted.step(tree.undrafted)
        if result.output is not None:
            self._tell(session.id, result.output)
        if result.finished is not None:
            self._tell(session.id, result.finished)
            self._end(session)
        return result

    def _step_us(self, step: StepInput) -> int:
        """Expect so many microseconds from one step like this to the next, prompts not counted; 0: there has been none."""
        if not self._steps:
            return 0
        tokens = sum(len(tree.draft.tokens) for tree in step.trees)
        expected_s = self._planner.expected_s(tokens, step.kv_tokens) + self.stopwatch.between_s
        return round(min(max(expected_s, 0.0), LONGEST_TOLD_S) * 1e6)

    def _without_pick(self, session: Session, draft: Draft) -> None:
        """The target has no token for a session. Its drafts may be at fault (masked NaN is still NaN): the next step does without."""
        error = SpecsplitError(
            f"the target has no token for position {draft.positions[0] + 1}: its logits there are NaN or infinite; its weights are broken, "
            "or its dtype is too narrow for this text (dtype float32 is the widest)"
        )
        if session.grammar is not None and session.grammar.problem:
            error = session.grammar.failure
        if len(draft.tokens) > 1:
            self._drafters.give_up(session, error)
            return
        _log.error("session %d ends: %s", session.id, error)
        self._tell(session.id, error)
        self._end(session, sound=False)

    def _hand_on(self, made: Iterable[tuple[int, Recipe, Features]], now: float) -> None:
        """Features were computed; who went, or wants them no longer, gets none."""
        for number, recipe, features in made:
            session = self._scheduler.running.get(number)
            if session is not None and session.drafter.recipe == recipe:
                self._scheduler.kv.prefixes.recomputed(session, recipe, features)
                self._drafters.computed(session, features, now)

    def _result(
        self, step: StepInput, output: StepOutput, sessions: Sequence[SessionResult], turn: TurnCosts | None
    ) -> StepResult:
        """Make the record of a step. It takes values of the output and not the output, whose features would live as long."""
        lap = self.stopwatch.lap(output.forward_s)
        drafts = self._drafters.counters.take()
        drafts.unverified_nodes += sum(session.reroot.cut for session in sessions)
        chunked = sum(chunk.num_tokens for chunk in step.chunks)
        recomputed = sum(chunk.num_tokens for chunk in step.chunks if chunk.recomputed)
        return StepResult(
            tokens=step.tokens,
            kv_tokens=step.kv_tokens,
            prefill_tokens=chunked - recomputed,
            recomputed_tokens=recomputed,
            began=step.planned_at,
            started=output.started,
            ended=lap.ended,
            waited_us=lap.waited_s * 1e6,
            forward_us=output.forward_s * 1e6,
            cold=output.cold,
            host_us=lap.host_s * 1e6,
            drafts=drafts,
            kv=self._scheduler.kv.counters.take(),
            arm=self._planner.arm,
            turn=turn,
            sessions=sessions,
            chunks=step.chunks,
            failed=output.failed,
        )

    def _order(self, order: PlanOrder) -> None:
        """An operator wants this from now on."""
        # Queued grows first: to a mirror that is behind, a drafter that rests seems busy, and is not told.
        self.apply_grows()
        was = self._planner.default
        self._planner.replan(order.changes, order.control)
        self._replan(f"by an operator's order, from {was}")

    def _replan(self, why: str) -> None:
        """Another default plan: sessions that are here follow it too. No step is in flight."""
        self._plan_switches += 1
        now, running = self._clock.now(), self._scheduler.running.values()
        for session in (*self._scheduler.waiting, *running):
            self._drafters.replan(session, self._planner.plan_of(session.request.plan), now)
        for session in running:
            self._drafters.resume(session, now)
        _log.info("the default plan is now %s, %s", self._planner.default, why)

    def _end(self, session: Session, *, sound: bool = True) -> None:
        self._scheduler.remove(session, sound=sound)  # first: features of its pages are kept for others
        self._drafters.close(session)
