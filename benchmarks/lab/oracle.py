"""Planners that know more than any policy can, to show how much there is to gain.

All of them choose, before every step, how many of each session's best nodes it takes. A run has so many tokens to commit, and an accepted
node saves the time that a token takes in the long run. So a node is taken if what it should commit, over what is committed per second
lately, is more than the time that its place takes by the true cost curve.

One knows how often nodes of such a survival are accepted. One knows what the target will say: it takes what will be
accepted and what stands before that, and does not wait where no grow can bring anything. To both what drafters grow is given, and they wait
by the product's rule, or never. The third is the second beside drafters that know the text too: when these tell what they have drawn is
their own affair, so what waiting brings is learnt, and not worked out from what an expansion takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from benchmarks.lab.cost import StepCurve
from benchmarks.lab.scenario import Policy, Scenario
from benchmarks.lab.truth import following
from specsplit.settings import VerifierSettings
from specsplit.speculation import Draft
from specsplit.tree import ROOT
from specsplit.values import Plan, PlanChanges
from specsplit_verifier.policy.account import Faded
from specsplit_verifier.policy.adaptive.ema import EmaController
from specsplit_verifier.policy.adaptive.goodput import GoodputController
from specsplit_verifier.policy.adaptive.tiers_file import DEFAULT
from specsplit_verifier.policy.planner import Pause, Planner, Schedule
from specsplit_verifier.records.step import StepResult
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.session import Session
from specsplit_verifier.sessions.tree_limits import TreeLimits
from specsplit_verifier.sessions.wait_policy import Prospect, worth_waiting

MOST = TreeLimits(num_draft_tokens=64, topk=16, num_steps=32)
"""What an oracle looks at of a speculation."""


class Choice(NamedTuple):
    """What a session may bring to a step."""

    tokens: int
    """Tokens of the session in the step, the root included."""
    length: float
    """What it commits, bonus included."""


class Knowledge(Protocol):
    """What an oracle knows."""

    def choices(self, session: Session, draft: Draft) -> list[Choice]:
        """What is worth considering of a draft whose nodes stand best first; the root alone is the first choice."""
        ...

    def prospect(self, session: Session, now: float) -> Prospect | None:
        """What may be grown before the next step; None: nothing that might be waited for."""
        ...


class Survivals:
    """Knows how often nodes are accepted, as drafters do in a warm scenario."""

    def choices(self, session: Session, draft: Draft) -> list[Choice]:
        """Every number of nodes, with the sum of their survivals."""
        found = [Choice(1, 1.0)]
        for log_survival in draft.log_survivals[1:]:
            found.append(Choice(found[-1].tokens + 1, found[-1].length + math.exp(log_survival)))
        return found

    def prospect(self, session: Session, now: float) -> Prospect | None:
        """What the product has seen of the drafter."""
        return session.drafter.prospect(now, session.plan, session.tree_limits)


class Truth:
    """Knows what the target says, by number of the session. Waits as the product does, but for nothing that is known not to come."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self._texts = texts

    def choices(self, session: Session, draft: Draft) -> list[Choice]:
        """For every right node, all nodes up to it."""
        text = self._texts[session.id]
        edges = enumerate(zip(draft.parents, draft.tokens, strict=True))
        children = {edge: index for index, edge in edges}
        found, at = [Choice(1, 1.0)], 0
        while (at := children.get((at, following(text, draft.positions[at])), 0)) != 0:
            found.append(Choice(at + 1, found[-1].length + 1))
        return found

    def prospect(self, session: Session, now: float) -> Prospect | None:
        """What the product has seen of the drafter, if the next right node may still come."""
        drafter = session.drafter
        if not isinstance(drafter, DraftSession) or self._is_wrong(session, drafter):
            return None
        return drafter.prospect(now, session.plan, session.tree_limits)

    def _is_wrong(self, session: Session, drafter: DraftSession) -> bool:
        """True if there are nodes in the place of the next right one: no grow will bring it, unless a head draws the root anew."""
        tree, text, at = drafter.mirror.tree, self._texts[session.id], ROOT
        while (below := tree.child(at, following(text, int(tree.positions[at])))) is not None:
            at = below
        return tree.has_children(at) and (at != ROOT or drafter.recipe is None or drafter.mirror.caught_up)


class OraclePlanner(Planner):
    """Plans by what an oracle knows, and by the true cost of a step."""

    def __init__(
        self, default: Plan, step_token_budget: int, knowledge: Knowledge, curve: StepCurve, *, waits: bool = True
    ) -> None:
        super().__init__(default, step_token_budget)
        self._knowledge = knowledge
        self._curve = curve
        self._waits = waits
        self._rate = Faded()
        """Tokens committed per second, time between steps included."""

    def plan_of(self, wishes: PlanChanges) -> Plan:
        """A session gets pages for as many nodes as an oracle may take."""
        return PlanChanges(num_draft_tokens=MOST.num_draft_tokens).over(super().plan_of(wishes))

    def schedule(self, running: Sequence[Session], now: float) -> Schedule | Pause:
        """The best nodes of the whole batch, or how long to wait for better ones."""
        if not running:
            return Pause(None)
        prompts = self._prompts(running)
        decoding = self._chooser.ready(running, prompts)
        chosen = self._best_of(decoding)
        if self._waits and not prompts and (pause := self._pause(decoding, chosen, now)):
            return Pause(pause)
        stepping = [
            (session, _limits(session, choice.tokens)) for session, choice in zip(decoding, chosen, strict=True)
        ]
        return self._schedule(running, stepping, prompts)

    def observe(self, result: StepResult) -> None:
        """Learn what is committed per second."""
        super().observe(result)
        if result.sessions:
            committed = sum(session.committed for session in result.sessions)
            self._rate.add(committed, (result.waited_us + result.forward_us) / 1e6)

    def _best_of(self, decoding: Sequence[Session]) -> list[Choice]:
        """For every session the choice that commits the most beyond what its tokens cost."""
        price = self._rate.mean * self._curve.per_token_us / 1e6
        return [
            max(self._considered(session), key=lambda each: (each.length - price * each.tokens, -each.tokens))
            for session in decoding
        ]

    def _considered(self, session: Session) -> list[Choice]:
        drafter = session.drafter
        if not isinstance(drafter, DraftSession):
            return [Choice(1, 1.0)]
        return self._knowledge.choices(
            session, drafter.mirror.preview(*_limits(session, MOST.num_draft_tokens).of_tree)
        )

    def _pause(self, decoding: Sequence[Session], chosen: Sequence[Choice], now: float) -> float:
        """Seconds to wait before looking again; 0: step now."""
        step_s = self._curve.seconds(sum(choice.tokens for choice in chosen), sum(s.kv_length for s in decoding))
        asked = ((session, self._knowledge.prospect(session, now)) for session in decoding)
        found = [(session, prospect) for session, prospect in asked if prospect is not None]
        price = sum(choice.length for choice in chosen) / step_s
        waiting = worth_waiting([prospect for _, prospect in found], price)
        if waiting is None:
            return 0.0
        for session, _ in found:
            session.drafter.hold(now)
        return waiting.look_s


def _limits(session: Session, tokens: int) -> TreeLimits:
    """Limits of so many tokens, however deep, but of nothing behind the end of the session."""
    left = session.stops.max_tokens - session.generated - 1
    return TreeLimits(tokens, MOST.topk, min(MOST.num_steps, left))


def planner_of(scenario: Scenario, settings: VerifierSettings, texts: Sequence[Sequence[int]]) -> Planner:
    """The planner of a scenario; `texts`: what the target says, by number of the session, for a policy that knows it."""
    plan, budget = settings.plan, settings.step_token_budget
    match scenario.policy:
        case Policy.STATIC:
            return Planner(plan, budget)
        case Policy.EMA:
            return Planner(plan, budget, lambda *_: EmaController(DEFAULT, DEFAULT.middle))
        case Policy.GOODPUT:
            return Planner(
                plan, budget, lambda *_: GoodputController(settings.max_draft_tokens), rest_trials=scenario.rest_trials
            )
        case Policy.KNOWS_SURVIVALS:
            return OraclePlanner(plan, budget, Survivals(), scenario.step, waits=scenario.waits)
        case Policy.KNOWS_TOKENS | Policy.DRAFTS_TOKENS:
            return OraclePlanner(plan, budget, Truth(texts), scenario.step, waits=scenario.waits)
