"""What a session of a drafter with a model has of its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specsplit.tree import Ints, TokenTree


class SessionText:
    """The committed tokens, of which the last is the root, and the tree below that."""

    def __init__(self, tree: TokenTree, tokens: Sequence[int]) -> None:
        self._tree: Final = tree
        self._tokens: Final = list(tokens)

    def positions(self, nodes: Ints) -> Ints:
        """Look up the positions of nodes in the text [n]."""
        return self._tree.positions.take(nodes)

    def path(self, node: int) -> list[int]:
        """List the tokens from below the root to a node."""
        return [self._tree.token_of(above) for above in self._tree.path(node)]

    @property
    def _root(self) -> int:
        """Position of the root."""
        return len(self._tokens) - 1
