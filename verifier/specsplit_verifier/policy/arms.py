"""Whether drafters work at all, or rest: two arms, of which the other one is tried now and then.

What nodes cost and bring is known of every step. What a drafter's own work costs the verifier, whose cores it may share, is in all steps
alike while it works; it shows only in steps in which all drafters rest, having been told so. With tokens and seconds of a step,

    edge = log(tokens with drafters / tokens without) - log(seconds with drafters / seconds without)

says which arm commits more tokens per second. Tokens of steps with drafters are counted all the time (without, each session commits one).
Seconds are compared in trials: a short stretch of the other arm, with steps of the one in force on both sides. The arm in force changes
once the other one is the better one by more than a standard error. Until that is plain trials come one after the other, then more and
more seldom. A trial may lose time; what it may lose at most is saved up for it, a small share of the time that goes by.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple

from specsplit.values import Arm
from specsplit_verifier.policy.cost import StepCost
from specsplit_verifier.policy.evidence import Stretch, TokenCount
from specsplit_verifier.records.step import SessionResult, StepResult

SAVED: Final = 0.008
"""Share of the time that trials may lose."""
MOST_SAVED_S: Final = 0.25
"""Seconds that are saved up at most, and at the beginning."""
ALL: Final = 0.99
"""So much of it is as good as all."""
STRETCH_S: Final = 0.05
"""Seconds of either arm that are compared in a trial, at least."""
LEAST: Final = 2
"""Steps of either arm that are compared in a trial, at least."""
TURNING: Final = 2
"""Steps of a trial that are likely not to count."""
FIRST: Final = 3
"""Steps before the first trial."""
COMPARED: Final = 8
"""Steps of the arm in force behind a trial, at least, that it is compared with."""
RECENT: Final = 32
"""Steps of the arm in force that are remembered."""
READING: Final = 4
"""Steps at most that do not count since a drafter that begins, or works again, reads what it has missed."""
SETTLING: Final = 16
"""Steps of a rest at most that do not count since drafters have not said yet that they rest."""
GAPS_S: Final = 1.0, 16.0
"""Seconds between two trials once it is plain which arm is better: at first, and at most. Every trial that changes nothing doubles them."""
LONGEST: Final = math.log(2.0)
"""Drafters seldom make steps longer by more than this (a log of seconds): those that bring more tokens need not be tried at once."""
PLAIN: Final = 2.0
"""It is plain which arm is better if the edge is so many standard errors."""
SMALL: Final = 0.02
"""An edge that may be as little as minus this is no reason to try again at once."""
LOST: Final = -0.01
"""Drafters rest if even a hopeful edge is less."""
REMEMBERED: Final = 256
"""Records that are kept."""


class _Step(NamedTuple):
    """One step."""

    seconds: float
    kv_tokens: int
    sessions: int
    drafted: int
    """Sessions, and those that have a drafter."""
    tokens: int
    """Tokens that were committed, all sessions together."""


class Record:
    """What is known of both arms for batches of about one size and one drafter."""

    def __init__(self) -> None:
        self.resting = False
        """Which arm is in force."""
        self.recent: deque[_Step] = deque(maxlen=RECENT)
        """Latest steps of the arm in force."""
        self.gap_s = 0.0
        self.since_s = 0.0
        """Seconds since the last trial."""
        self.dear = False
        """True if the last trial cost all that was saved up before it showed anything."""
        self.tokens, self.stretch = TokenCount(), Stretch()

    @property
    def edge(self) -> float:
        """The edge, with a stretch of 0 before the first trial."""
        return math.log(self.tokens.mean) - self.stretch.mean

    def better(self, stretch: Stretch) -> bool:
        """Whether the arm that is not in force is the better one, by what is known of the stretch."""
        if not stretch.known:
            return False
        edge = math.log(self.tokens.mean) - stretch.mean
        if self.resting:
            return edge - stretch.error > 0
        return edge + math.hypot(self.tokens.error, stretch.error) < LOST

    @property
    def due(self) -> bool:
        """Whether it is time for a trial."""
        if self.tokens.steps < LEAST or len(self.recent) < FIRST or not _full(self.recent):
            return False
        if not self.stretch.known:
            return self.since_s >= GAPS_S[0] or math.log(self.tokens.mean) < LONGEST
        if self.since_s >= self.gap_s:
            return True
        error = math.hypot(self.tokens.error, self.stretch.error)
        return not self.resting and self.edge < min(PLAIN * error, error - SMALL)

    def change(self) -> None:
        """Have the other arm in force."""
        self.resting, self.gap_s, self.since_s = not self.resting, GAPS_S[0], 0.0
        self.recent.clear()

    def keep(self) -> None:
        """Keep the arm in force behind a trial."""
        self.gap_s, self.since_s = min(max(GAPS_S[0], 2 * self.gap_s), GAPS_S[1]), 0.0


class _Trial:
    """Some steps of the other arm, and those of the arm in force on both sides."""

    def __init__(self, before: Sequence[_Step], tokens: float) -> None:
        """`tokens`: of a session that has a drafter, in a step of the arm in force."""
        self.before = before
        sessions = sum(step.sessions + step.drafted * (tokens - 1) for step in before)
        self.rate = sessions / sum(step.seconds for step in before)
        """Tokens per second of the arm in force."""
        self.other: list[_Step] = []
        self.after: list[_Step] = []
        self.over = False
        """True once the arm in force is back."""
        self.lost_s = 0.0

    def stretch(self, cost: StepCost) -> tuple[float, float]:
        """Compute log(seconds of the other arm / seconds of the one in force), and the variance that its steps give it."""
        other, variance = _log_mean(self.other, cost)
        own, own_variance = _log_mean([*self.before, *self.after], cost)
        return other - own, variance + own_variance


class Arms:
    """Has drafters work or rest. Belongs to the engine thread; seconds are those of steps."""

    def __init__(self) -> None:
        self._records: dict[Hashable, Record] = {}
        self._record = self._plain = Record()
        """Of the batch as it is, and of one of its size in which no text repeats itself."""
        self._trial: _Trial | None = None
        self._saved_s = MOST_SAVED_S
        self._turning = READING
        """Steps that do not count yet, unless drafters say before that they rest, or what they have."""

    @property
    def resting(self) -> bool:
        """True if all drafters are to rest in the next step."""
        return self.arm in (Arm.REST, Arm.REST_TRIED)

    @property
    def arm(self) -> Arm:
        """What drafters do in the step that is in flight."""
        if self._trial is None or self._trial.over:
            return Arm.REST if self._record.resting else Arm.WORK
        return Arm.WORK_TRIED if self._record.resting else Arm.REST_TRIED

    @property
    def plain_resting(self) -> bool:
        """True if drafters of sessions whose text does not repeat itself are to rest in the next step, beside others whose text does."""
        return self._plain is not self._record and self._plain.resting

    def meet(self, addresses: Sequence[str], repeating: int = 0) -> None:
        """Take in the drafters of the sessions that decode next: one address for each that has a drafter.

        `repeating`: so many of these sessions have a text that repeats itself.
        """
        one = addresses[0] if addresses and addresses.count(addresses[0]) == len(addresses) else None
        self._plain = self._record_of((len(addresses).bit_length(), one, 0))
        record = self._record_of((len(addresses).bit_length(), one, repeating.bit_length()))
        if record is not self._record:
            rested = self.resting
            self._record, self._trial = record, None
            record.recent.clear()
            self._turned(rested)
            self._turning = max(self._turning, 0 if record.tokens.steps else READING)

    def _record_of(self, key: Hashable) -> Record:
        if key not in self._records and len(self._records) >= REMEMBERED:
            del self._records[next(iter(self._records))]
        return self._records.setdefault(key, Record())

    def observe(self, result: StepResult, cost: StepCost) -> None:
        """Learn from a step that is over."""
        drafted = [part for part in result.sessions if part.attached]
        if result.failed or result.cold or result.chunks or result.others_tokens or not drafted:
            return
        if not all(part.plan.draft_ahead for part in drafted):  # it waits for drafts because it was told to
            return
        working = not self.resting
        if not working and any(part.plan.speculates for part in drafted):  # they are not told yet
            return
        seconds, sessions = (result.waited_us + result.forward_us + result.host_us) * 1e-6, len(result.sessions)
        step = _Step(seconds, result.kv_tokens, sessions, len(drafted), result.accepted + sessions)
        self._saved_s = min(MOST_SAVED_S, self._saved_s + SAVED * seconds)
        self._record.since_s += seconds
        counted = self._counted(drafted, working=working)
        if self._trial is None:
            self._go_on(step, counted=counted)
        else:
            self._try(self._trial, step, cost, counted=counted)

    def _counted(self, drafted: Sequence[SessionResult], *, working: bool) -> bool:
        """Whether a step tells of the arm that it is of; if drafters work, count what it committed."""
        if working and all(part.drafter_ready for part in drafted):
            self._turning = 0
        counted = not self._turning
        rested = not working and all(part.reroot.rested for part in drafted)
        self._turning = 0 if rested else max(0, self._turning - 1)
        if working and counted:
            self._record.tokens.add(sum(1 + part.accepted for part in drafted) / len(drafted), len(drafted))
        return counted

    def _turned(self, rested: bool) -> None:
        """Have drafters begin again, or end what they are at, if they have been told to."""
        if rested is not self.resting:
            self._turning = SETTLING if self.resting else READING

    def _go_on(self, step: _Step, *, counted: bool) -> None:
        record = self._record
        if record.resting and not counted:
            return
        record.recent.append(step)
        if not record.resting and record.better(record.stretch):
            self._change()
        elif record.due and self._affordable():
            self._begin()

    def _begin(self) -> None:
        record, rested = self._record, self.resting
        self._trial = _Trial(list(record.recent), 1.0 if record.resting else record.tokens.mean)
        if record.resting:
            record.tokens.doubt()
        self._turned(rested)

    def _affordable(self) -> bool:
        """Whether enough is saved up for what a trial is likely to lose."""
        record = self._record
        share = math.expm1(-record.edge) if record.resting else -math.expm1(-record.edge)
        step_s = sum(step.seconds for step in record.recent) / len(record.recent)
        price_s = (max(STRETCH_S, LEAST * step_s) + TURNING * step_s) * min(1.0, max(0.0, share))
        return self._saved_s >= (ALL * MOST_SAVED_S if record.dear else min(price_s, ALL * MOST_SAVED_S))

    def _try(self, trial: _Trial, step: _Step, cost: StepCost, *, counted: bool) -> None:
        """Take in a step of a trial, or behind it; what does not count yet is part of what the trial loses."""
        record = self._record
        if trial.over and counted:
            trial.after.append(step)
            record.recent.append(step)
            if record.dear or (len(trial.after) >= COMPARED and _full(trial.after)):
                self._end(trial, cost)
            return
        lost_s = step.seconds - step.tokens / trial.rate
        trial.lost_s += lost_s
        self._saved_s = min(MOST_SAVED_S, self._saved_s - lost_s)
        if trial.over:
            return
        if counted:
            trial.other.append(step)
        shown = _full(trial.other)
        if shown:
            known = record.stretch.copy()
            known.add(*self._signed(trial, cost))
            if record.better(known):
                record.stretch = known
                self._change()
                return
        if shown or (self._saved_s < 0 and trial.lost_s > 0):
            record.dear, trial.over = not shown, True
            self._turned(not self.resting)

    def _signed(self, trial: _Trial, cost: StepCost) -> tuple[float, float]:
        """Compute log(seconds of steps with drafters / seconds of steps without) as a trial has it, and its variance."""
        stretch, variance = trial.stretch(cost)
        return (stretch if self._record.resting else -stretch), variance

    def _end(self, trial: _Trial, cost: StepCost) -> None:
        """Learn from a trial that both sides are there of, and decide."""
        record = self._record
        if not record.dear:
            record.stretch.add(*self._signed(trial, cost))
        self._trial = None
        if record.better(record.stretch):
            self._change()
        else:
            record.keep()

    def _change(self) -> None:
        """Have the other arm in force, and charge what the one in force has lost lately."""
        record, rested = self._record, self.resting
        if not record.resting:
            rest = math.exp(-record.stretch.mean)
            lost_s = sum(step.seconds * (1 - step.tokens / step.sessions * rest) for step in record.recent)
            self._saved_s -= max(0.0, lost_s)
        record.change()
        self._trial = None
        self._turned(rested)


def _full(steps: Sequence[_Step] | deque[_Step]) -> bool:
    """Whether there are steps enough to compare."""
    return len(steps) >= LEAST and sum(step.seconds for step in steps) >= STRETCH_S


def _log_mean(steps: Iterable[_Step], cost: StepCost) -> tuple[float, float]:
    """Compute the log of the mean of what steps took, relative to what their roots alone should take, and its variance as they give it."""
    taken = [step.seconds / cost.predict(step.sessions, step.kv_tokens) for step in steps]
    mean = sum(taken) / len(taken)
    variance = sum((each - mean) ** 2 for each in taken) / max(1, len(taken) - 1)
    return math.log(mean), variance / mean**2 / len(taken)
