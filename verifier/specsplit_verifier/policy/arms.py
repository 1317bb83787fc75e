"""Whether drafters work at all, or rest: two arms, of which the other one is tried now and then.

What nodes cost and bring is known of every step. What a drafter's own work costs the verifier, whose cores it may share, is in all steps
alike while it works; it shows only in steps in which all drafters rest, having been told so. With tokens and seconds of a step,

    edge = log(tokens with drafters / tokens without) - log(seconds with drafters / seconds without)

says which arm commits more tokens per second. Tokens of steps with drafters are counted all the time (without, each session commits one).
Seconds are compared in trials: a few steps of the other arm directly behind steps of the one in force. A trial may lose time; what it
may lose at most is saved up for it, a small share of the time that goes by.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

from specsplit_verifier.policy.cost import StepCost
from specsplit_verifier.records.step import StepResult

SAVED: Final = 0.006
"""Share of the time that trials may lose."""
MOST_SAVED_S: Final = 0.15
"""Seconds that are saved up at most, so that a trial behind a long time without any is not a long one."""
COMPARED: Final = 8
"""Steps of the arm in force that a trial is compared with, at most."""
FIRST: Final = 4
"""Steps before the first trial."""
OPENING: Final = 1.5
"""Steps whose time the first trial of a record may lose without having it saved up."""
TRIAL: Final = 4
"""Steps of a trial that count, the last ones."""
LEAST: Final = 2
"""Steps of a trial at least in which no drafter is late, however much time it loses."""
SETTLING: Final = 16
"""Steps of a trial at most in which late drafters, now at rest, end what they are at."""
READING: Final = 8
"""Steps of a trial at most in which drafters that work again read what they have missed."""
GAPS: Final = 16, 1024
"""Steps between two trials: at first, and at most. Every trial that changes nothing doubles them."""
LOST: Final = -0.02
"""Drafters rest if even a hopeful edge is less."""
WON: Final = 0.01
"""Resting drafters work again if the edge is more."""
FORGETTING: Final = 0.995
SURE: Final = 16
"""Behind so many steps less than a standard error is hoped for."""
BARREN: Final = 8
"""After so many steps in a row of which no node was accepted what was counted before them is forgotten."""
REMEMBERED: Final = 64
"""Records that are kept."""


class _Step(NamedTuple):
    """One step."""

    seconds: float
    sessions: int
    """Sessions that decoded."""
    kv_tokens: int
    tokens: int
    """Tokens that were committed, all sessions together."""
    ready: bool
    """True if no drafter was late."""


class Record:
    """What is known of both arms for batches of about one size and one drafter."""

    def __init__(self) -> None:
        self.resting = False
        """Which arm is in force."""
        self.recent: deque[_Step] = deque(maxlen=COMPARED)
        """Latest steps of the arm in force."""
        self.gap = FIRST
        self.since = 0
        """Steps since the last trial."""
        self.stretch: float | None = None
        """log(seconds of a step while drafters work / while they rest); None: not tried yet."""
        self._weight = self._tokens = self._squares = 0.0
        self._barren = 0.0
        """Steps in a row of which no node was accepted; those for which drafters were late count half."""

    def committed(self, tokens: float, *, ready: bool) -> None:
        """Count a step with drafters that committed so many tokens a session. One for which they were late tells half as much at most."""
        self._barren += 1.0 if ready else 0.5
        if tokens > 1:
            self._barren = 0.0
        if self._barren >= BARREN and self._tokens > self._weight:
            self._weight = self._tokens = self._squares = float(BARREN)
        elif ready:
            self._weight = FORGETTING * self._weight + 1
            self._tokens = FORGETTING * self._tokens + tokens
            self._squares = FORGETTING * self._squares + tokens**2

    def doubt(self) -> None:
        """Give what was counted long ago half of its weight."""
        self._weight, self._tokens, self._squares = self._weight / 2, self._tokens / 2, self._squares / 2

    @property
    def tokens(self) -> float:
        """Tokens a session of steps with drafters, in the mean; 1 before the first."""
        return (self._tokens + 0.5) / (self._weight + 0.5)

    @property
    def hopeful_tokens(self) -> float:
        """Tokens a session that steps with drafters may bring yet: a standard error more than the mean."""
        mean = self.tokens
        variance = max(0.0, self._squares / max(self._weight, 1.0) - mean**2)
        return mean + min(1.0, SURE / (self._weight + 1.0)) * math.sqrt((variance + 0.1) / (self._weight + 1.0))

    @property
    def edge(self) -> float:
        """The edge, with a stretch of 0 before the first trial."""
        return math.log(self.tokens) - (self.stretch or 0.0)

    def tried(self, stretch: float) -> bool:
        """Learn from a trial; True if the other arm is in force from now on."""
        self.since = 0
        self.stretch = stretch if self.stretch is None else (self.stretch + stretch) / 2
        return self.decide()

    def decide(self) -> bool:
        """Change the arm in force if it is the worse one; True if it was."""
        if self.stretch is None:
            return False
        hopeful = math.log(self.hopeful_tokens) - self.stretch
        change = self.edge > WON if self.resting else hopeful < LOST
        if change:
            self.since = 0
            self.resting, self.gap = not self.resting, GAPS[0]
        return change


class Arms:
    """Has drafters work or rest. Belongs to the engine thread; seconds are those of steps."""

    def __init__(self) -> None:
        self._records: dict[Hashable, Record] = {}
        self._record = Record()
        self._trial: list[_Step] | None = None
        """Steps of the trial that goes on; None: none does."""
        self._saved_s = 0.0

    @property
    def resting(self) -> bool:
        """True if all drafters are to rest in the next step."""
        return self._record.resting is (self._trial is None)

    def meet(self, addresses: Sequence[str]) -> None:
        """Take in the drafters of the sessions that decode next: one address for each that has a drafter."""
        one = addresses[0] if addresses and addresses.count(addresses[0]) == len(addresses) else None
        key = len(addresses).bit_length(), one
        record = self._records.get(key)
        if record is None:
            if len(self._records) >= REMEMBERED:
                del self._records[next(iter(self._records))]
            record = self._records[key] = Record()
        if record is not self._record:
            self._record, self._trial = record, None
            record.recent.clear()

    def observe(self, result: StepResult, cost: StepCost) -> None:
        """Learn from a step that is over."""
        drafted = [part for part in result.sessions if part.attached]
        if result.failed or result.cold or result.chunks or result.others_tokens or not drafted:
            return
        working = any(part.plan.speculates for part in drafted)
        if working is self.resting:  # sessions rest by themselves, or are not told yet
            return
        seconds = (result.waited_us + result.forward_us + result.host_us) * 1e-6
        tokens = result.accepted + len(result.sessions)
        self._saved_s = min(MOST_SAVED_S, self._saved_s + SAVED * seconds)
        ready = all(part.drafter_ready for part in drafted if part.plan.speculates)
        step = _Step(seconds, len(result.sessions), result.kv_tokens, tokens, ready)
        if working and (ready or self._trial is None):
            self._record.committed(sum(1 + part.accepted for part in drafted) / len(drafted), ready=ready)
        if self._trial is not None:
            self._trial.append(step)
            if self._told(self._trial):
                self._end_trial(self._trial, cost)
        else:
            self._go_on(step)

    def _told(self, trial: Sequence[_Step]) -> bool:
        """Whether a trial has had steps enough, or has lost what it may."""
        if self._record.resting:
            ready = sum(step.ready for step in trial)
            wanted = LEAST if self._lost(trial) > self._saved_s else TRIAL
            return ready >= wanted or len(trial) >= READING
        settled = all(step.ready for step in (*self._record.recent, *trial)[-COMPARED:])
        return len(trial) >= (TRIAL if settled else SETTLING) or (
            len(trial) >= LEAST and self._lost(trial) > self._saved_s
        )

    def _go_on(self, step: _Step) -> None:
        record = self._record
        record.recent.append(step)
        record.since += 1
        if not record.resting and record.since % BARREN == 0 and self._changed(record.decide()):
            return
        if record.since >= record.gap and len(record.recent) >= FIRST and self._affordable():
            self._trial = []
            if record.resting:
                record.doubt()

    def _affordable(self) -> bool:
        """Whether enough is saved up for a trial; the first of a record may cost a little more, so that bad drafters are found at once."""
        record = self._record
        step_s = sum(step.seconds for step in record.recent) / len(record.recent)
        share = math.expm1(-record.edge) if record.resting else -math.expm1(-record.edge)
        price_s = TRIAL * step_s * min(1.0, max(0.0, share))
        return self._saved_s >= min(MOST_SAVED_S, price_s) or (record.stretch is None and price_s <= OPENING * step_s)

    def _lost(self, trial: Sequence[_Step]) -> float:
        """Seconds that a trial has lost: what its tokens would have taken less in steps of the arm in force."""
        recent = self._record.recent
        rate = sum(step.tokens for step in recent) / sum(step.seconds for step in recent)
        return sum(step.seconds for step in trial) - sum(step.tokens for step in trial) / rate

    def _changed(self, change: bool) -> bool:
        """Charge what the arm that was in force has lost lately, if it was the worse one -> `change`."""
        record = self._record
        if change:
            if record.resting:
                self._saved_s += sum(step.seconds for step in record.recent) * min(0.0, math.expm1(record.edge))
            record.recent.clear()
        return change

    def _end_trial(self, trial: Sequence[_Step], cost: StepCost) -> None:
        record = self._record
        self._saved_s -= max(0.0, self._lost(trial))
        self._trial = None
        other, own = _relative(trial[-TRIAL:], cost), _relative(record.recent, cost)
        stretch = math.log(other / own) if record.resting else math.log(own / other)
        if not self._changed(record.tried(stretch)):
            record.gap = min(2 * max(record.gap, GAPS[0] // 2), GAPS[1])


def _relative(steps: Sequence[_Step], cost: StepCost) -> float:
    """Compute what steps took, relative to what steps of their roots alone should take."""
    return sum(step.seconds for step in steps) / sum(cost.predict(step.sessions, step.kv_tokens) for step in steps)
