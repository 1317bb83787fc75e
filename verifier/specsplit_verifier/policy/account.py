"""The account of recent steps: what they spent and brought, and what the launched plan would have brought."""

from __future__ import annotations

from dataclasses import replace

from specsplit.values import Estimate, NoDrafts, NoDraftsCause, Plan
from specsplit_verifier.policy.budget import Line, Spending
from specsplit_verifier.records.step import StepResult

FORGETTING = 0.95
STICKY = 0.8
"""The numbers shown change once recent steps are so far from them: more than a rounding, so that they do not flutter."""
WEIGHED = 8
"""One step in so many is compared with the step of the launched plan."""


class Faded:
    """A mean over recent steps; older ones fade by 5 % each."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add a step."""
        self._sum = FORGETTING * self._sum + value
        self._weight = FORGETTING * self._weight + weight

    @property
    def mean(self) -> float:
        """The sum of the values over that of the weights; 0 before the first."""
        return self._sum / self._weight if self._weight else 0.0


class Account:
    """The account of one verifier.

    A step counts when it is over; what the one weighed last has shown of the launched plan is taken for all of them.
    """

    def __init__(self) -> None:
        self.depth, self.nodes = Faded(), Faded()
        """Depth and nodes verified, by session that had a drafter."""
        self._length, self._step_s, self._rate, self._gain = Faded(), Faded(), Faded(), Faded()
        self.price: NoDrafts | None = None
        """Cost and gain of nodes when a step last took none although there were some; None: that was never so."""
        self._token_s = 0.0
        self._ratio = 1.0
        self._steps = 0
        self._shown: tuple[int, int] | None = None
        """num_steps and num_draft_tokens."""
        self._last: tuple[tuple[int, int], Plan, Plan] | None = None
        """What was shown when this was last asked, the plan that was asked for, and the plan as shown: most sessions have the same."""

    @property
    def rate(self) -> float:
        """Tokens that all sessions commit per second; 0 before the first step."""
        return self._rate.mean

    @property
    def asks(self) -> bool:
        """True if the step that is chosen now is to be weighed."""
        return self._steps % WEIGHED == 0

    def weighed(self, chosen: Spending, launched: Spending, line: Line) -> None:
        """Compare the step that is chosen with that of the launched plan. To be called if the account `asks`."""
        if chosen.length:  # else it is a step of prompts alone, which shows nothing
            self._token_s = line.token_s
            self._ratio = (launched.length * chosen.seconds) / (chosen.length * launched.seconds)
            if any(launched.nodes) and not any(chosen.nodes):
                self.price = _price(chosen, launched)

    def stepped(self, result: StepResult) -> None:
        """Add a step that is over."""
        if result.sessions:
            self._add(result)
        depth, tokens = self.depth.mean, 1 + self.nodes.mean
        num_steps, num_draft_tokens = self._shown or (depth, tokens)
        self._shown = _stuck(num_steps, depth), _stuck(num_draft_tokens, tokens)

    def _add(self, result: StepResult) -> None:
        self._steps += 1
        seconds = (result.waited_us + result.forward_us + result.host_us) * 1e-6
        committed = result.accepted + len(result.sessions)
        self._length.add(committed, len(result.sessions))
        self._step_s.add(result.forward_us * 1e-6)
        self._rate.add(committed, seconds)
        self._gain.add(self._ratio)
        for part in result.sessions:
            if part.attached:
                self.depth.add(part.depth)
                self.nodes.add(part.drafted)

    def shown(self, plan: Plan) -> Plan:
        """Replace num_steps and num_draft_tokens of a plan by what recent steps have spent, as far as that is less."""
        shown, last = self._shown, self._last  # once each: metrics ask from another thread
        if shown is None:
            return plan
        if last is None or last[:2] != (shown, plan):
            num_steps, num_draft_tokens = min(plan.num_steps, shown[0]), min(plan.num_draft_tokens, shown[1])
            last = self._last = shown, plan, replace(plan, num_steps=num_steps, num_draft_tokens=num_draft_tokens)
        return last[2]

    def estimate(self) -> Estimate | None:
        """The estimate from recent steps; None: there were none."""
        rate = self.rate
        if not rate:
            return None
        return Estimate(self._length.mean, self._step_s.mean, self._token_s, rate, rate * self._gain.mean)


def _price(bare: Spending, launched: Spending) -> NoDrafts:
    """Compute cost and gain of the nodes of the launched plan, by session."""
    sessions = len(launched.nodes)
    nodes = max(1, round(sum(launched.nodes) / sessions))
    return NoDrafts(NoDraftsCause.PRICE, nodes, launched.seconds / bare.seconds, launched.length / sessions)


def _stuck(shown: float, now: float) -> int:
    """Compute the number to show."""
    return round(now if abs(now - shown) > STICKY else shown)
