"""Who steps now, with how many nodes, and how long to wait: the policy of the engine, and all that it decides by.

There is one policy, for which a controller is the bound: `static` one that stays, `ema` one that moves, and both have a step take all
that there is within it. `goodput` is the bound of what a step can hold, within which it takes what pays.

The engine asks `schedule` before every step and tells `observe` what came of it. A planner says what plan every session is under, too: what
its request fixes comes first, then what an operator wants, then what the controller says, then the plan of the settings. The engine asks
`adapt` whether that has changed, and then tells drafters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from specsplit.ranks.lockstep import Agreed
from specsplit.values import AS_SET, Arm, Control, Estimate, NoDrafts, Plan, PlanChanges
from specsplit_verifier.policy.account import Account
from specsplit_verifier.policy.adaptive.controller import Controller
from specsplit_verifier.policy.arms import Arms
from specsplit_verifier.policy.chooser import StepChooser
from specsplit_verifier.policy.cost import StepCost
from specsplit_verifier.records.step import StepResult
from specsplit_verifier.records.undrafted import Undrafted
from specsplit_verifier.sessions.session import Session
from specsplit_verifier.sessions.tree_limits import TreeLimits


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the next step takes on, by session: all that is decided of it. Where in the KV it lies, and which drafts, is found after."""

    decoding: Sequence[tuple[Session, TreeLimits]]
    """(session, how much of its speculation it brings at most)."""
    prefilling: Sequence[tuple[Session, int]] = ()
    """(session, prompt tokens to prefill). One that reads the last of its prompt may be decoding too."""
    recomputing: Sequence[tuple[Session, range]] = field(default_factory=list[tuple[Session, range]])
    """(session, positions to run once more for features that its drafter lacks)."""
    crowded_out: Collection[int] = frozenset()
    """Sessions, by id, that bring their roots alone since likelier nodes of others take all the memory for states of drafts."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing to step now; look again after so many seconds, or at the next event (None: only then)."""

    seconds: float | None


class Budget(NamedTuple):
    """How much of texts that are there one step reads, at most."""

    tokens: int
    """Tokens of prompts and of recomputed features."""
    told: int
    """Tokens of prompts whose log-probabilities are told."""


Controllers = Callable[[Control], Controller]
"""Makes the controller that an operator orders."""


def static(_: Control) -> Controller:
    """Make the controller that keeps the launched plan, whatever an operator orders."""
    return Controller()


class Planner:
    """Learns what steps cost and bring, and waits for drafters while that pays. A controller decides the default plan.

    Belongs to the engine thread; times are seconds of the clock.
    """

    def __init__(
        self,
        launched: Plan,
        step_token_budget: int,
        controllers: Controllers = static,
        *,
        grouped: bool = False,
        most_nodes: int | None = None,
        rest_trials: bool = False,
        roots_join: bool = True,
        most_told: int | None = None,
    ) -> None:
        """`step_token_budget`: tokens of prompts and of recomputed features in one step, at most. `grouped`: this is a rank of a group.

        `most_nodes`: drafts that the device has memory for in one step, roots not counted; None: it has for any number.
        `rest_trials`: drafters are told to rest while more tokens a second are committed without them. `roots_join`: a session decodes
        in the very step that reads the last of its prompt. `most_told`: tokens of prompts in one step whose log-probabilities are told,
        at most; None: any number.
        """
        self.cost = StepCost()
        self._chooser = StepChooser(most_nodes, roots_join=roots_join)
        self._arms = Arms() if rest_trials and not grouped else None
        self._launched = launched
        self._budget = Budget(step_token_budget, step_token_budget if most_told is None else most_told)
        self._controllers = controllers
        self._controller = controllers(AS_SET)
        self._wanted = AS_SET
        self._changes = PlanChanges()
        self._adapted = self._controller.plan(launched, 0)
        self._grouped = grouped
        self._others_tokens = 0
        """Tokens that the other ranks of the group brought to the turn before; a step takes as long as all of them."""

    @property
    def default(self) -> Plan:
        """The plan of a session whose request does not say otherwise."""
        return self._under(self._changes)

    def replan(self, changes: PlanChanges, control: Control = AS_SET) -> None:
        """Obey an operator's order from now on; see `PlanOrder`.

        Raises InvalidRequest for a controller that does not go with the settings.
        """
        if control != self._wanted:  # else the one in force keeps what it has learnt
            self._controller = self._controllers(control)
            self._chooser.account = Account()
            self._wanted = control
            self._adapted = self._controller.plan(self._launched, 0)
        self._changes = changes

    @property
    def arm(self) -> Arm | None:
        """What drafters do in the step that is in flight; None: it is not tried whether they should rest."""
        return self._arms.arm if self._arms is not None and self._controller.chooses else None

    @property
    def floor(self) -> float:
        """Survival below which the step that was chosen last had no use for a node; 0: it takes what it can get."""
        return self._chooser.floor if self._controller.chooses else 0.0

    @property
    def rate(self) -> float:
        """Tokens that all sessions commit per second lately; 0: there were no steps yet."""
        return self._chooser.account.rate

    def estimate(self) -> Estimate | None:
        """The estimate behind the default plan; None: there were no steps yet, or there is nothing to weigh."""
        return self._chooser.account.estimate() if self._controller.chooses else None

    def no_drafts(self, undrafted: Undrafted) -> NoDrafts | None:
        """Explain why these steps had no drafts; None: they had some."""
        planned = not self._controller.chooses or not self.default.speculates
        return undrafted.reason(self._chooser.account.price, planned=planned)

    def adapt(self, sessions: int) -> bool:
        """Let the controller decide the default plan for a batch of so many sessions; True if that is another one now.

        In a group the ranks decide it together: see `agree`.
        """
        return not self._grouped and self._adopt(self.wants(sessions))

    def wants(self, sessions: int) -> Plan:
        """Ask the controller for its plan for a batch of so many sessions."""
        return self._controller.plan(self._launched, sessions)

    def agree(self, agreed: Agreed) -> bool:
        """Take over the plan of the group after a turn; True if the default plan is another one now."""
        self._others_tokens, plan = agreed.others_rows, agreed.plan
        return plan is not None and self._adopt(plan)

    def expected_s(self, tokens: int, kv_tokens: int) -> float:
        """Estimate the seconds of a step, with the tokens that other ranks brought to the turn before."""
        return self.cost.predict(self._others_tokens + tokens, kv_tokens)

    def _adopt(self, adapted: Plan) -> bool:
        if adapted == self._adapted:  # nearly every step
            return False
        before, self._adapted = self.default, adapted
        return self.default != before

    def plan_of(self, wishes: PlanChanges) -> Plan:
        """Make the plan of a session now. Raises InvalidRequest if what its request fixes does not go with the rest."""
        return self._under(wishes.after(self._changes))

    def _under(self, changes: PlanChanges) -> Plan:
        """Change the controller's plan. Where num_steps is fixed alone the launched nodes hold: the controller's are for its own steps.

        Not so those of a controller that chooses within a bound: what it says is the bound.
        """
        plan = self._adapted
        if changes.num_steps is not None and not self._controller.chooses:
            plan = replace(plan, num_draft_tokens=self._launched.num_draft_tokens)
        return changes.over(plan)

    def schedule(self, running: Sequence[Session], now: float) -> Schedule | Pause:
        """Choose the next step over these sessions, in order of arrival, or how long to wait for a better one.

        A step takes everybody once nothing is worth waiting for; beside a prompt it does at once, since there is a forward in any case.
        Sessions that draft and verify alternately are held back by themselves, and join the step once their drafts are there. Beside ranks
        that step nobody waits: who did would sit out a whole step.
        """
        if not running:
            return Pause(None)
        prompts = self._prompts(running)
        ready = self._chooser.ready(running, prompts)
        self._chooser.meet(ready)
        if self._arms is not None:
            drafted = [session for session in ready if session.drafter.attached and session.plan.draft_ahead]
            repeating = sum(map(self._chooser.repeating, drafted))
            self._arms.meet([session.drafter.address for session in drafted], repeating)
        if not prompts and not all(session.plan.draft_ahead for session in ready):
            pauses = [_serial_pause(session, now) for session in ready]
            ready = [session for session, pause in zip(ready, pauses, strict=True) if pause == 0.0]
            if not ready:
                return Pause(min(pauses))
        launched = self._launched if self._controller.chooses else None
        other_tokens = self._others_tokens + sum(size for _, size in prompts)
        spending = self._chooser.spending(ready, self.cost, launched, other_tokens)
        if not (prompts or self._others_tokens) and (pause := self._chooser.pause(ready, spending, now)):
            return Pause(pause)
        counts = zip(ready, spending.nodes, strict=True)
        decoding = [(session, session.tree_limits.within(1 + nodes)) for session, nodes in counts]
        crowded_out = {ready[number].id for number in spending.crowded_out}
        return self._schedule(running, decoding, prompts, crowded_out)

    def _prompts(self, running: Sequence[Session]) -> list[tuple[Session, int]]:
        prefilling = [session for session in running if session.prefilling]
        return prompt_chunks(prefilling, *self._budget) if prefilling else []

    def resting_changes(self, running: Iterable[Session]) -> Sequence[tuple[Session, Plan]]:
        """Find sessions whose drafters are to rest from now on, or no longer, each with its new plan."""
        if not self._controller.chooses:
            return []
        arms = self._arms
        if arms is None:
            return self._chooser.resting_changes(running, self.plan_of)
        return self._chooser.resting_changes(
            running, self.plan_of, all_rest=arms.resting, plain_rest=arms.plain_resting
        )

    def shown(self, plan: Plan) -> Plan:
        """The plan of a session as it is shown; see `Account.shown`."""
        return self._chooser.account.shown(plan) if self._controller.chooses else plan

    def observe(self, result: StepResult) -> None:
        """Learn from a step that is over."""
        if not (result.failed or result.cold):  # what was tried in vain, or is cold, says nothing of others
            self.cost.observe(result.tokens + result.others_tokens, result.kv_tokens, result.forward_us * 1e-6)
        self._chooser.observe(result)
        self._controller.observe(result)
        if self._arms is not None and self._controller.chooses:
            self._arms.observe(result, self.cost)

    def _schedule(
        self,
        running: Sequence[Session],
        decoding: Sequence[tuple[Session, TreeLimits]],
        prompts: Sequence[tuple[Session, int]],
        crowded_out: Collection[int] = frozenset(),
    ) -> Schedule:
        left = self._budget.tokens - sum(size for _, size in prompts)
        return Schedule(decoding, prompts, recompute_chunks(running, left), crowded_out)


def _serial_pause(session: Session, now: float) -> float:
    """Seconds for which a session that drafts and verifies alternately is held back."""
    pause = session.drafter.pause(now, session.plan, session.tree_limits)
    if pause > 0.0:
        session.drafter.hold(now)
    return pause


RECOMPUTE_TOKENS = 32  # of one session in a step beside others: about as much as two sessions bring to it
OLDEST_PART = 4  # of the budget one part in so many is for the oldest prompt, however many shorter ones come


def prompt_chunks(
    prefilling: Sequence[Session], budget: int, most_told: int | None = None
) -> list[tuple[Session, int]]:
    """(session, tokens to prefill), in order of arrival. The oldest is sure of a part; of the rest the shortest remainder comes first.

    `most_told`: tokens of prompts that are told, of all sessions together, at most; the oldest come first. None: the budget is less.
    """
    told = budget if most_told is None else most_told
    wanted: dict[int, int] = {}
    for session in prefilling:
        wanted[session.id] = min(session.unread, told) if session.telling else session.unread
        told -= wanted[session.id] if session.telling else 0
    sizes = dict.fromkeys(wanted, 0)
    oldest = prefilling[0].id
    sizes[oldest] = min(wanted[oldest], math.ceil(budget / OLDEST_PART))
    left = budget - sizes[oldest]
    for number in sorted(wanted, key=wanted.__getitem__):
        more = min(left, wanted[number] - sizes[number])
        sizes[number] += more
        left -= more
    return [(session, sizes[session.id]) for session in prefilling if sizes[session.id]]


def recompute_chunks(running: Sequence[Session], left: int) -> list[tuple[Session, range]]:
    """(session, positions to recompute) within `left` tokens, in equal parts: few each beside sessions that lack none."""
    lacking = [(s, s.drafter.recompute) for s in running if s.drafter.recompute]
    if len(lacking) < len(running):
        left = min(left, RECOMPUTE_TOKENS * len(lacking))
    lacking.sort(key=lambda pair: len(pair[1]))  # what a short one leaves of its part goes to those behind it
    chunks: list[tuple[Session, range]] = []
    for number, (session, positions) in enumerate(lacking):
        part = positions[: math.ceil(left / (len(lacking) - number))]
        if not part:
            break
        chunks.append((session, part))
        left -= len(part)
    return chunks
