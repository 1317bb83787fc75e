"""What drafters may still bring before a step, and whether it is worth the time.

Time has a price: the tokens per second that are committed if nobody waits. Waiting for t seconds pays exactly if what comes in them, all
sessions together, is more than t times the price. Which t is best is seen by looking at every moment at which a grow is expected: what
several grows bring together may be worth a wait that the first of them is not. With no drafter slower than the wire nobody ever waits
long, and with one that answers fast a whole tree is waited for: drafting ahead and the serial loop are two outcomes of one rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

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
