"""What the penalties of a session count at its drafter: committed tokens, and those on the paths to expanded nodes."""

from __future__ import annotations

from collections.abc import Sequence

from specsplit.sampling import TokenCounts
from specsplit_drafter.proposer import Advance, FrontierNode


class DraftedText:
    """The text of one session, with everything that was drafted behind it."""

    def __init__(self, tokens: Sequence[int], prompt_tokens: int) -> None:
        """`tokens`: the committed ones, the root last; so many from the front were not generated."""
        self.counts = TokenCounts(prompt_tokens)
        self.counts.add(tokens)
        self._paths: dict[int, tuple[int, ...]] = {}
        """By id of an expanded node, the tokens from below the root to it."""

    def commit(self, advance: Advance) -> None:
        """Every path that lives on begins with what was committed."""
        self.counts.add(advance.tokens)
        below = len(advance.tokens)
        self._paths = {node: path[below:] for node, path in self._paths.items() if node in advance.survivors}

    def path(self, node: FrontierNode) -> tuple[int, ...]:
        """The tokens from below the root to a node, which is about to be expanded; empty for the root."""
        if node.position == len(self.counts) - 1:
            return ()
        path = self._paths[node.node] = (*self._paths.get(node.parent, ()), node.token)
        return path
