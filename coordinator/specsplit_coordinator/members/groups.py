"""The rank groups of one cluster. Pure: the time is that of the clock it is given."""

from __future__ import annotations

from specsplit.clock import Clock
from specsplit.membership import GroupRank
from specsplit_coordinator.members.group import Group

PATIENCE = 10
"""A group that is no longer whole, or that no rank of is there, is waited for this many times as long as a silent member."""


class Groups:
    """The groups of which a rank is in the cluster, or was lately."""

    def __init__(self, clock: Clock, lost_after_s: float) -> None:
        """`lost_after_s`: how long a member may be silent."""
        self._clock = clock
        self._patience_s = PATIENCE * lost_after_s
        self._groups: dict[str, Group] = {}
        """By group id."""

    def join(self, who: GroupRank) -> Group:
        """Add a rank -> its group. Raises InvalidRequest as `Group.join` does."""
        group = self._groups.get(who.group_id) or Group(who.size)
        first = group.empty
        group.join(who)
        if first:
            group.since = self._clock.now()
        self._groups[who.group_id] = group
        return group

    def lose(self, who: GroupRank) -> None:
        """Remove a rank that has joined."""
        group = self._groups[who.group_id]
        group.lose(who.rank)
        if group.empty:
            group.since = self._clock.now()

    def check(self) -> None:
        """Wake groups that have not been whole for long, and drop those that no rank has come back to."""
        now = self._clock.now()
        for group_id, group in [*self._groups.items()]:
            group.check(now, self._patience_s)
            if group.empty and now - group.since > self._patience_s:
                del self._groups[group_id]
