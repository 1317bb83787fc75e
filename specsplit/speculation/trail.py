"""What has been committed since the last commit that the drafter is known to have seen: late nodes may follow it."""

from __future__ import annotations

from collections.abc import Sequence


class Trail:
    """The committed path from the root that the drafter knows to the present one."""

    def __init__(self, root_token: int) -> None:
        self.commits = 0
        """Number of the commit that made the first token the root."""
        self.tokens: list[int] = [root_token]
        """The root that the drafter knows, and all that was committed behind it; the last is the present root."""
        self.ids: dict[int, int] = {}
        """Index in `tokens` of those that have been nodes, by id."""
        self._roots: list[int] = [0]
        """Index in `tokens` of the root of commit `commits` + i."""

    @property
    def last(self) -> int:
        """Index of the present root."""
        return len(self.tokens) - 1

    def extend(self, ids: Sequence[int], tokens: Sequence[int]) -> None:
        """Add what one commit brought; an id of 0 is of a token that was no node."""
        for index, node_id in enumerate(ids, len(self.tokens)):
            if node_id:
                self.ids[node_id] = index
        self.tokens += tokens
        self._roots.append(self.last)

    def name(self, index: int, node_id: int) -> bool:
        """Give a token the id of the node that it turns out to be; False, and nothing has changed, if it has one."""
        if index in self.ids.values():
            return False
        self.ids[node_id] = index
        return True

    def forget(self, commits: int) -> None:
        """Drop what lies before the root of commit number `commits`, which the drafter has seen."""
        passed = commits - self.commits
        if passed == 0:
            return
        cut = self._roots[passed]
        self.tokens = self.tokens[cut:]
        self._roots = [index - cut for index in self._roots[passed:]]
        self.ids = {node_id: index - cut for node_id, index in self.ids.items() if index >= cut}
        self.commits = commits
