"""States of recurrent layers behind whole pages of text, so that another text that begins alike need not be read from its beginning."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from torch import Tensor

States = list[Tensor]
"""All states that one module keeps of n texts: [n, ...] each."""


class Snapshots:
    """Copies of states by the page whose last token they are behind. Those that were used least recently go first.

    A page that is written anew has other states: who completes it says so by `put` or `drop`. Whether a page still holds what it held is
    for the caller to know.
    """

    def __init__(self) -> None:
        self.limit_bytes = 0
        """Device memory for all of them, at most."""
        self._kept: Final = OrderedDict[int, Sequence[States]]()
        self.nbytes = 0
        """Device memory that they take."""

    def __contains__(self, page: int) -> bool:
        return page in self._kept

    def put(self, page: int, states: Sequence[States]) -> None:
        """Keep states of one text, by module, that belong to a page from now on; none that are larger than all of the memory."""
        self.drop([page])
        if _nbytes(states) > self.limit_bytes:
            return
        self._kept[page] = states
        self.nbytes += _nbytes(states)
        while self.nbytes > self.limit_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.nbytes -= _nbytes(oldest)

    def get(self, page: int) -> Sequence[States]:
        """Look up the states of a page that is here, by module."""
        self._kept.move_to_end(page)
        return self._kept[page]

    def drop(self, pages: Iterable[int]) -> None:
        """Forget the states of these pages."""
        for page in pages:
            self.nbytes -= _nbytes(self._kept.pop(page, ()))


def _nbytes(states: Sequence[States]) -> int:
    return sum(state.nbytes for module in states for state in module)
