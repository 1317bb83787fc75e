"""Whether to step with what survived, or to wait for the drafter.

Waiting pays while what it brings per second is more than what stepping brings per second (the marginal value theorem): with E the
expected accept_length now, c the time of a step, and an expected gain g after another r seconds,

    (E + g) / (c + r) > E / c      exactly if      g / r > E / c.

g and r are learnt from what this drafter did after earlier commits; a drafter that sleeps soon has nothing to be waited for.

What is known when: grows reach `WaitPolicy` where the engine settles them (see `DraftSession`), with the times at which they came.
Between steps their gain is known too, since the next step is chosen by it. Of those that come while a step is in flight only the times
are, but for a probe: after one commit in PROBED the first grow is applied when it comes, and its gain is looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from specsplit.speculation import Draft
from specsplit.values import Plan
from specsplit_verifier.sessions.prospect import Prospect, Share

SMOOTHING = 0.1
DIMINISHING = 0.7  # what a further grow adds, relative to the one before
PROBED = 7  # one commit in so many; no usual batch is a multiple of it, so that every session has its turn
HIT_MARGIN = (
    2.0  # after a hit there is a tree in hand: waiting must promise so many times as much (docs/log.md, 2026-11-21)
)


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
    gained: float = 0.0
    """What the last grow added to it."""
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

    def restart(self, now: float, hit: bool, *, probed: bool = False) -> None:
        """Note that a commit was made."""
        self.since = self.last = now
        self.hit = hit
        self.probed = probed
        self.before = None
        self.gained = 0.0
        self.held_since = None
        self.commits.append(now)

    def look(self, draft: Draft) -> None:
        """No grow has come since the last commit, and a step would now take this draft."""
        self.expected, self.ends = draft.outlook
        self.before = self.expected

    def hold(self, now: float) -> None:
        """The session is not stepped now, for what its drafter may bring."""
        if self.held_since is None:
            self.held_since = now

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
        self._first_gain = {True: 0.2, False: 1.0}
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
        expected, ends = draft.outlook
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
        self._first_gain[wait.hit] += SMOOTHING * (gain - self._first_gain[wait.hit])
        self._first_share[wait.hit].observe(gain, wait.ends)
        wait.last, wait.expected, wait.gained = now, expected, gain

    def later_grow(self, wait: Wait, now: float, expected: float) -> None:
        """Note that a further grow has come."""
        self._more_s += SMOOTHING * (now - wait.last - self._more_s)
        wait.last, wait.gained, wait.expected = now, max(0.0, expected - wait.expected), expected
        self._more_share.observe(wait.gained, wait.ends)

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
        left = wait.since + plan.wait_budget_us * 1e-6 - now
        if left <= 0:
            return None
        share = self._more_share if caught_up else self._first_share[wait.hit]
        more = min(self._more_share.mean, 1.0)
        return Prospect(self._remaining(wait, now, caught_up), share.mean * wait.ends, self._more_s, more, left)

    def _remaining(self, wait: Wait, now: float, caught_up: bool) -> float:
        """Seconds until the next grow should come. What is overdue may still take a while."""
        usual, start = (self._more_s, wait.last) if caught_up else (self._first_s[wait.hit], wait.since)
        return max(usual - (now - start), usual / 4, 1e-4)

    def pause(self, wait: Wait, now: float, step_s: float, plan: Plan, caught_up: bool) -> float:
        """Seconds to wait before looking again; 0: step now."""
        left = wait.since + plan.wait_budget_us * 1e-6 - now
        if left <= 0:
            return 0.0
        if not plan.draft_ahead:
            return left  # the serial loop: draft, then verify
        gain = DIMINISHING * wait.gained if caught_up else self._first_gain[wait.hit]
        remaining = self._remaining(wait, now, caught_up)
        margin = HIT_MARGIN if wait.hit else 1.0
        return min(remaining, left) if gain / remaining > margin * wait.expected / step_s else 0.0
