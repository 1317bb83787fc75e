"""The choice of the nodes of a step, and of when it begins, by the tokens that are committed per second.

Every number here is measured: what a step costs (`StepCost`), how often nodes of such a survival are accepted (`Acceptance`), what
drafters bring after a commit and when (`WaitPolicy`), and which part of what was waited for came (`Trust`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from specsplit.speculation import Draft
from specsplit.values import Plan, PlanChanges
from specsplit_verifier.policy.acceptance import Acceptance, SessionAcceptance, Standing
from specsplit_verifier.policy.account import Account
from specsplit_verifier.policy.budget import Line, Spending, fixed, spend
from specsplit_verifier.policy.cost import StepCost
from specsplit_verifier.records.step import StepResult
from specsplit_verifier.sessions.session import Session
from specsplit_verifier.sessions.wait_policy import Prospect, Trust, Waiting, worth_waiting

SMOOTHING: Final = 0.05
FLOOR: Final = 0.5
"""Nodes that a drafter thinks half as likely as they have to be may still be worth their place: it may think too little of them."""
REMEMBERED: Final = 128
"""Drafters by kinds of text (greedy, sampled; looked up for beside it or not) whose acceptance is kept."""


class _Asked(NamedTuple):
    """A wait that was chosen."""

    at: float
    sessions: list[int]
    length: float
    waiting: Waiting


class StepChooser:
    """Chooses steps. Belongs to the engine thread."""

    def __init__(self, most_nodes: int | None = None, *, roots_join: bool = True) -> None:
        """`most_nodes`: drafts that the device has memory for in one step; None: it has for any number.

        `roots_join`: a session decodes in the very step that reads the last of its prompt.
        """
        self._most_nodes: Final = most_nodes
        self._roots_join: Final = roots_join
        self.host_s = 0.0
        """Seconds of a step beside the forward, lately."""
        self.floor = 0.0
        """Survival, as drafters say it, below which the step that was chosen last had no use for a node."""
        self.account = Account()
        self._trust = Trust()
        self._asked: _Asked | None = None
        self._acceptance: dict[tuple[str, bool, bool], Acceptance] = {}
        """Acceptance by address of the drafter, by whether sessions are sampled, and by whether they are looked up for beside it."""
        self._standings: dict[int, Standing] = {}
        """Standings by session id."""

    def ready(self, running: Iterable[Session], prompts: Iterable[tuple[Session, int]]) -> list[Session]:
        """Find the sessions that can decode in a step which reads so many tokens of their prompts."""
        sizes = {session.id: size for session, size in prompts} if self._roots_join else {}
        return [session for session in running if session.unread == sizes.get(session.id, 0)]

    def meet(self, sessions: Sequence[Session]) -> None:
        """Take in the sessions that decode now."""
        met: dict[int, Standing] = {}
        for session in sessions:
            standing = self._standing(session)
            if standing is not None:
                met[session.id] = standing
                standing.read(session.tokens)
                session.drafter.meet(repeating=standing.repeating)
                standing.looked_up = session.drafter.looked_up
        self._standings = met

    def repeating(self, session: Session) -> bool:
        """Tell whether a session that has a drafter has a text that repeats itself now."""
        standing = self._standings.get(session.id)
        return standing is not None and standing.repeating

    def spending(
        self, sessions: Sequence[Session], cost: StepCost, launched: Plan | None, other_tokens: int = 0
    ) -> Spending:
        """Choose how many nodes of each session a step should take that runs `other_tokens` of others.

        `launched`: what it is compared with. None: nothing is chosen, and the step takes all nodes that the plans allow.
        """
        kv_tokens = sum(session.kv_length for session in sessions)
        line = Line(cost.predict(other_tokens, kv_tokens) + self.host_s, cost.token_s)
        log_survivals = [self._log_survivals(session) for session in sessions]

        def within_memory(wanted: Spending) -> Spending:
            most = self._most_nodes
            return wanted if most is None else wanted.at_most(most, self._corrected(sessions, log_survivals), line)

        if launched is None:
            return within_memory(fixed(self._corrected(sessions, log_survivals), line))
        spending = spend(self._corrected(sessions, log_survivals), line)
        self.floor = FLOOR * min(1.0, spending.price(line))
        if self.account.asks:
            others = fixed(self._corrected(sessions, log_survivals), line, launched.num_draft_tokens - 1)
            self.account.weighed(within_memory(spending), within_memory(others), line)
        there = zip(sessions, log_survivals, strict=True)
        return within_memory(spending.at_least([min(self._least(session), len(own)) for session, own in there]))

    def _prospect(self, session: Session, now: float) -> Prospect | None:
        """Estimate the tokens that nodes to come may bring a session, by acceptance so far."""
        standing = self._standings.get(session.id)
        if standing is None or not session.plan.speculates:
            return None
        prospect = session.drafter.prospect(now, session.plan, session.tree_limits)
        return None if prospect is None else prospect.times(min(1.0, standing.acceptance.level))

    def _least(self, session: Session) -> int:
        standing = self._standings.get(session.id)
        return 0 if standing is None else standing.least

    def _corrected(
        self, sessions: Sequence[Session], log_survivals: Sequence[Sequence[float]]
    ) -> list[Iterator[float]]:
        """Survivals of each session's nodes, best first, corrected by acceptance so far."""
        return [
            self._standings[session.id].acceptance.corrected(map(math.exp, own)) if own else iter(())
            for session, own in zip(sessions, log_survivals, strict=True)
        ]

    def _log_survivals(self, session: Session) -> Sequence[float]:
        """Look up the log-survivals of the nodes that a session has for a step, best first, the root left out."""
        if session.id not in self._standings or not session.plan.speculates:
            return ()
        return session.drafter.log_survivals(session.tree_limits)

    def pause(self, sessions: Sequence[Session], spending: Spending, now: float) -> float:
        """Choose how many seconds to wait before looking again, for nodes that would make this step a better one; 0: step now."""
        self._learn(sessions, spending, now)
        asked = ((session, self._prospect(session, now)) for session in sessions)
        found = [(session, prospect) for session, prospect in asked if prospect is not None]
        price = spending.length / spending.seconds
        waiting = worth_waiting([prospect for _, prospect in found], price, self._trust.share)
        if waiting is None:
            self._trust.unwanted()
            return 0.0
        for session, _ in found:
            session.drafter.hold(now)
        self._asked = _Asked(now, [session.id for session in sessions], spending.length, waiting)
        return waiting.look_s

    def observe(self, result: StepResult) -> None:
        """Learn from a step that is over."""
        self._asked = None  # a wait before a step beside prompts was for another step
        self.host_s += SMOOTHING * (result.host_us * 1e-6 - self.host_s)
        self.account.stepped(result)
        for part in result.sessions:
            standing = self._standings.get(part.session)
            if standing is not None and (part.plan.speculates or standing.resting):
                accepted = [index - 1 for index in part.accepted_path[1:]]
                standing.stepped(_probabilities(part.draft), accepted, drafter_ready=part.drafter_ready)

    def resting_changes(
        self,
        sessions: Iterable[Session],
        plan_of: Callable[[PlanChanges], Plan],
        *,
        all_rest: bool = False,
        plain_rest: bool = False,
    ) -> list[tuple[Session, Plan]]:
        """Find sessions whose drafters are to rest from now on, or no longer, each with its new plan.

        `all_rest`: every drafter is to, but for sessions that draft and verify alternately, since that was ordered. `plain_rest`: of these
        drafters those are to whose session's text does not repeat itself.
        """
        found: list[tuple[Session, Plan]] = []
        for session in sessions:
            standing = self._standings.get(session.id)
            told = session.plan.draft_ahead and (all_rest or (plain_rest and not self.repeating(session)))
            resting = standing is not None and (told or standing.resting)
            if resting is not session.plan.speculates:
                continue  # it is so already
            plan = plan_of(session.request.plan)
            plan = replace(plan, num_steps=0) if resting else plan
            if plan != session.plan:  # else it is a request that wants no drafts
                found.append((session, plan))
        return found

    def _standing(self, session: Session) -> Standing | None:
        drafter, standing = session.drafter, self._standings.get(session.id)
        if not drafter.attached:
            return None
        if standing is None or standing.address != drafter.address:
            alone, together = (SessionAcceptance(self._drafters(session, looked_up=each)) for each in (False, True))
            return Standing(drafter.address, alone, together)
        return standing

    def _drafters(self, session: Session, *, looked_up: bool) -> Acceptance:
        key = session.drafter.address, session.sampled, looked_up
        if key not in self._acceptance and len(self._acceptance) >= REMEMBERED:
            del self._acceptance[next(iter(self._acceptance))]
        return self._acceptance.setdefault(key, Acceptance())

    def _learn(self, sessions: Sequence[Session], spending: Spending, now: float) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and asked.sessions == [session.id for session in sessions]:
            self._trust.waited(asked.waiting, now - asked.at, spending.length - asked.length)


def _probabilities(draft: Draft) -> Sequence[float]:
    return [math.exp(log_survival) for log_survival in draft.log_survivals[1:]]
