"""What drafters may still bring before a step, and whether it is worth the time.

Time has a price: the tokens per second that are committed if nobody waits. Waiting for t seconds pays exactly if what comes in them, all
sessions together, is more than t times the price. Which t is best is seen by looking at every moment at which a grow is expected: what
several grows bring together may be worth a wait that the first of them is not. With no drafter slower than the wire nobody ever waits
long, and with one that answers fast a whole tree is waited for: drafting ahead and the serial loop are two outcomes of one rule.

What grows bring, and when, is learnt from those after earlier commits. They reach `WaitPolicy` where the engine applies them (see
`DraftSession`), with the times at which they came. Between steps their gain is known too, since the next step is chosen by it. Of grows
that come while a step is in flight only the times are known, but for a probe: after one commit in PROBED the first grow is applied when
it comes, and its gain is looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from specsplit.speculation import Draft
from specsplit.values import Plan

SMOOTHING = 0.1
PROBED = 7  # one commit in so many; no usual batch is a multiple of it, so that every session is probed at times
FORGETTING: Final = 0.97
RECOVERY: Final = 0.01
"""How far trust goes back to where it began with every step that nobody waited for, so that waiting is tried again."""
BELIEF: Final = 5.0
"""Open ends that a first guess counts as."""
LOOK_S: Final = 0.0005
"""Shortest time until prospects are looked at again, unless something comes."""
GROWS: Final = 8
"""Grows that are looked ahead for each session."""


class Prospect(NamedTuple):
    """What should still come for one session."""

    next_s: float
    """Seconds until the next grow."""
    gain: float
    """Tokens that the next grow should add to what a step commits."""
    every_s: float
    """Seconds between further grows."""
    more: float
    """What each further grow adds, relative to the one before; at most 1."""
    left_s: float
    """Seconds for which the session may wait at most."""

    def times(self, share: float) -> Prospect:
        """This prospect with `share` of its gains."""
        return Prospect(self.next_s, share * self.gain, self.every_s, self.more, self.left_s)


class Waiting(NamedTuple):
    """A wait that pays."""

    look_s: float
    """When to look again: the first grow should be there."""
    seconds: float
    """How long the wait would take in all."""
    gain: float
    """Tokens that the wait should bring."""


@dataclass(slots=True)
class Share:
    """What recent grows added for each open end of a draft."""

    guess: float
    """What is believed before any grow has come."""
    added: float = 0.0
    ends: float = 0.0

    def observe(self, added: float, ends: float) -> None:
        """A grow added so much to a draft with so many open ends."""
        self.added = FORGETTING * self.added + added
        self.ends = FORGETTING * self.ends + ends

    @property
    def mean(self) -> float:
        """The guess, drawn to what was seen."""
        return (self.added + BELIEF * self.guess) / (self.ends + BELIEF)


@dataclass(slots=True)
class Trust:
    """Which share of the gains that were waited for has come true, over recent waits; at most 1."""

    came: float = 2.0
    hoped: float = 2.0

    @property
    def share(self) -> float:
        return min(1.0, self.came / self.hoped)

    def waited(self, waiting: Waiting, seconds: float, gained: float) -> None:
        """Learn from a wait that is over: how long it took, and what it brought."""
        self._add(0.05, gained, waiting.gain * min(1.0, seconds / waiting.seconds))

    def unwanted(self) -> None:
        """Learn from a step that nobody waited for: trust goes back a little to where it began."""
        self._add(RECOVERY, 2.0 * RECOVERY, 2.0 * RECOVERY)

    def _add(self, forgotten: float, came: float, hoped: float) -> None:
        self.came = max(0.0, (1 - forgotten) * self.came + came)
        self.hoped = (1 - forgotten) * self.hoped + hoped


def worth_waiting(prospects: Sequence[Prospect], price: float, trust: float = 1.0) -> Waiting | None:
    """Find the wait that brings the most beyond its price (tokens per second); None if none does.

    `trust`: the share of gains that come true.
    """
    if not _may_pay(prospects, price, trust):
        return None
    if len(prospects) == 1:
        return _alone(prospects[0], price, trust)
    next_s, gain, every_s, more, left_s = np.array(prospects).T[:, :, None]
    grows = np.arange(GROWS)
    moments = next_s + grows * every_s
    gains = np.where(moments <= left_s, gain * more**grows, 0.0)
    order = np.argsort(moments, axis=None, kind="stable")
    moments, reached = moments.ravel()[order], np.cumsum(gains.ravel()[order])
    surplus = trust * reached - price * moments
    best = int(np.argmax(surplus))
    if surplus[best] <= 0.0:
        return None
    return Waiting(max(LOOK_S, float(next_s.min())), float(moments[best]), float(reached[best]))


def _alone(prospect: Prospect, price: float, trust: float) -> Waiting | None:
    """`worth_waiting` for one session, whose grows are in order: arrays cost more than so few numbers."""
    next_s, gain, every_s, more, left_s = prospect
    best, most, reached = None, 0.0, 0.0
    for grow in range(GROWS):
        moment = next_s + grow * every_s
        if moment > left_s:
            break
        reached += gain
        if trust * reached - price * moment > most:
            most = trust * reached - price * moment
            best = Waiting(max(LOOK_S, next_s), moment, reached)
        gain *= more
    return best


def _may_pay(prospects: Sequence[Prospect], price: float, trust: float) -> bool:
    """False, as a rule, where no wait pays: each of n sessions then is not worth an n-th of the price.

    That is so at every moment if it is so at its best: if all of its grows brought as much as the first.
    """
    own_price = price / max(1, len(prospects))
    return any(trust * each.gain > own_price * min(each.next_s, each.every_s) for each in prospects)


@dataclass(slots=True)
class Wait:
    """What has come for one session since its last commit."""

    since: float = 0.0
    """When the last commit was made, in seconds."""
    hit: bool = False
    """Whether that commit left a subtree."""
    before: float | None = None
    """Expected accept_length right after it; None: nobody has looked yet."""
    last: float = 0.0
    """When the last grow came; `since` if none has."""
    expected: float = 1.0
    """Expected accept_length now."""
    ends: float = 1.0
    """Open ends of the draft in hand."""
    held_since: float | None = None
    """When the engine began to hold the session back for its drafter; None: it has not since the last commit."""
    probed: bool = False
    """Whether it is to be seen at once what the first grow after the last commit brings."""
    commits: deque[float] = field(default_factory=deque[float])
    """When each commit was made that the drafter has not answered yet, oldest first."""

    def begin(self, now: float) -> None:
        """Note that a drafter begins on the session."""
        self.since = self.last = now

    def restart(self, now: float, hit: bool, *, probed: bool = False, commits: int = 1) -> None:
        """Note that a step was committed, as so many commits of which the last was a `hit` or not."""
        self.since = self.last = now
        self.hit = hit
        self.probed = probed
        self.before = None
        self.held_since = None
        self.commits += [now] * commits

    def look(self, draft: Draft) -> None:
        """No grow has come since the last commit, and a step would now take this draft."""
        self.expected, self.ends = draft.forecast
        self.before = self.expected

    def hold(self, now: float) -> None:
        """The session is not stepped now, for what its drafter may bring."""
        if self.held_since is None:
            self.held_since = now

    def left_s(self, now: float, plan: Plan) -> float:
        """Seconds for which the plan still allows to wait; not above 0: none."""
        return self.since + plan.wait_budget_us * 1e-6 - now

    def answered(self, commits: int) -> float | None:
        """The drafter has now seen that many more commits: when the newest of them was made."""
        made = None
        for _ in range(commits):
            made = self.commits.popleft()
        return made


class WaitPolicy:
    """What waiting for one drafter has brought lately. All times in seconds."""

    def __init__(self) -> None:
        self._first_s = {True: 0.005, False: 0.005}
        self._more_s = 0.005
        self._first_share = {True: Share(0.5), False: Share(1.0)}
        """What the first grow adds for each open end, after a hit and after a miss."""
        self._more_share = Share(0.6)
        """What further grows add for each open end."""
        self._commits = 0

    def probes(self) -> bool:
        """Tell whether the first grow after the commit that is made now is to be looked at when it comes."""
        self._commits += 1
        return self._commits % PROBED == 0

    def grew(self, wait: Wait, times: Sequence[float], draft: Draft, *, first: bool) -> None:
        """Grows have come at these times, the `first` after a commit among them or not; a step would now take `draft`.

        Each is taken to have added as much as the others.
        """
        expected, ends = draft.forecast
        share = (expected - wait.expected) / len(times)
        for number, at in enumerate(times):
            observe = self.first_grow if first and number == 0 else self.later_grow
            observe(wait, at, expected - share * (len(times) - 1 - number))
        wait.ends = ends

    def first_grow(self, wait: Wait, now: float, expected: float) -> None:
        """The first grow after a commit has come; a step would now have `expected` accept_length."""
        self.late_grow(wait, now)
        assert wait.before is not None, "somebody looked before it came"
        gain = max(0.0, expected - wait.before)
        self._first_share[wait.hit].observe(gain, wait.ends)
        wait.last, wait.expected = now, expected

    def later_grow(self, wait: Wait, now: float, expected: float) -> None:
        """Note that a further grow has come."""
        self._more_s += SMOOTHING * (now - wait.last - self._more_s)
        gain = max(0.0, expected - wait.expected)
        wait.last, wait.expected = now, expected
        self._more_share.observe(gain, wait.ends)

    def late_grow(self, wait: Wait, now: float, made: float | None = None) -> None:
        """The first grow after the commit made at `made` (None: the last) has come; what it brought nobody has looked at."""
        elapsed_s = now - (wait.since if made is None else made)
        self._first_s[wait.hit] += SMOOTHING * (elapsed_s - self._first_s[wait.hit])

    def in_vain(self, wait: Wait, now: float) -> None:
        """A step begins before the first grow has come. If that is overdue, expect the next one later still."""
        if now - wait.since > self._first_s[wait.hit]:
            self._first_s[wait.hit] *= 1 + SMOOTHING

    def prospect(self, wait: Wait, now: float, plan: Plan, caught_up: bool) -> Prospect | None:
        """What may still come for a session before it steps; None if it has waited for as long as its plan allows."""
        left = wait.left_s(now, plan)
        if left <= 0:
            return None
        share = self._more_share if caught_up else self._first_share[wait.hit]
        more = min(self._more_share.mean, 1.0)
        return Prospect(self._remaining(wait, now, caught_up), share.mean * wait.ends, self._more_s, more, left)

    def _remaining(self, wait: Wait, now: float, caught_up: bool) -> float:
        """Seconds until the next grow should come. What is overdue may still take a while."""
        usual, start = (self._more_s, wait.last) if caught_up else (self._first_s[wait.hit], wait.since)
        return max(usual - (now - start), usual / 4, 1e-4)
