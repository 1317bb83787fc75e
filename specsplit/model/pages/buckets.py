"""The sizes of the forwards that are captured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from specsplit.settings.engine import EngineSettings


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """The size of one captured forward: it holds up to so many new tokens, of up to so many rows."""

    tokens: int
    rows: int

    def holds(self, tokens: int, rows: int) -> bool:
        """True if a forward of this size can be padded to the bucket."""
        return tokens <= self.tokens and rows <= self.rows


class Buckets:
    """All that are captured: tokens by powers of 2 and rows by powers of 4, each up to a most, and never more rows than tokens.

    A forward of few tokens takes as long as reading the weights does, so twice the tokens cost next to nothing. Rows without tokens cost
    less still; how many there are decides how an attention kernel cuts the tokens up, for which a factor of 4 is near enough.
    """

    def __init__(self, most_tokens: int, most_rows: int) -> None:
        if most_tokens < 1 or most_rows < 1:
            raise ValueError(f"most_tokens is {most_tokens} and most_rows is {most_rows}, expected at least 1 each")
        rows = list(_ladder(min(most_tokens, most_rows), 4))
        pairs = (Bucket(tokens, row) for tokens in _ladder(most_tokens, 2) for row in rows if row <= tokens)
        self._ascending = tuple(sorted(pairs))

    @classmethod
    def of(cls, settings: EngineSettings) -> Self | None:
        """The buckets that a service is told to capture; None: it is told not to."""
        return cls(settings.cuda_graph_tokens, settings.cuda_graph_rows) if settings.cuda_graphs == "auto" else None

    def __iter__(self) -> Iterator[Bucket]:
        """The largest first, so that what the smaller ones need is there when they are captured."""
        return reversed(self._ascending)

    def __len__(self) -> int:
        return len(self._ascending)

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest."""
        return self._ascending[-1].tokens

    @property
    def most_rows(self) -> int:
        """Rows of the largest."""
        return self._ascending[-1].rows

    def fit(self, tokens: int, rows: int) -> Bucket | None:
        """The least bucket that holds a forward, or None: by tokens, then by rows."""
        return next(self.holding(tokens, rows), None)

    def holding(self, tokens: int, rows: int) -> Iterator[Bucket]:
        """All that hold a forward, in the order of `fit`."""
        return (bucket for bucket in self._ascending if bucket.holds(tokens, rows))


def _ladder(most: int, factor: int) -> Iterator[int]:
    """1, factor, factor ** 2 ... and `most`."""
    size = 1
    while size < most:
        yield size
        size *= factor
    yield most
