"""The rank groups of one cluster. Pure: time is the clock's."""

from __future__ import annotations

from specsplit.clock import Clock
from specsplit.membership import GroupRank
from specsplit_coordinator.members.group import Group

PATIENCE = 10
"""Times as long as a member may be silent: so long a group is waited for that is not whole any more, or of which no rank is there."""


class Groups:
    """Rank groups of which a rank is there, or was lately."""

    def __init__(self, clock: Clock, lost_after_s: float) -> None:
        """`lost_after_s`: for how long a member may be silent."""
        self._clock = clock
        self._patience_s = PATIENCE * lost_after_s
        self._groups: dict[str, Group] = {}
        """By group id."""

    def join(self, who: GroupRank) -> Group:
        """Let a rank in: its group. Raises InvalidRequest as `Group.join` does."""
        group = self._groups.get(who.group_id) or Group(who.size)
        first = group.empty
        group.join(who)
        if first:
            group.since = self._clock.now()
        self._groups[who.group_id] = group
        return group

    def lose(self, who: GroupRank) -> None:
        """Let a rank go that has joined."""
        group = self._groups[who.group_id]
        group.lose(who.rank)
        if group.empty:
            group.since = self._clock.now()

    def look(self) -> None:
        """Wake groups that have not been whole for long, and forget those of which no rank has come back."""
        now = self._clock.now()
        for group_id, group in [*self._groups.items()]:
            group.look(now, self._patience_s)
            if group.empty and now - group.since > self._patience_s:
                del self._groups[group_id]
