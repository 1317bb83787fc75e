"""What one session wants of a verifier's KV. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specsplit.prefix import first_marks

WRITTEN = 256
"""Tokens that a session is expected to write, at most: it takes their pages little by little, and may end long before max_tokens."""


class Need:
    """The text that a session begins with, and what it may write behind it."""

    def __init__(
        self,
        tokens: Sequence[int] = (),
        most: int | None = None,
        drafted: int | None = None,
        failed_on: Collection[str] = (),
    ) -> None:
        """`most`: tokens that it may write, if that is known. `drafted`: its tokens in one step at most, if its request says so.

        `failed_on`: verifiers, by member id, whose targets have failed on it.
        """
        self._tokens = tokens
        self._most = most
        self.drafted = drafted
        self.failed_on = failed_on
        self._marks: dict[int, tuple[int, ...]] = {}
        """Marks of the text's first pages, by page size."""

    def pages(self, page_size: int) -> int:
        """Pages that it should find free."""
        written = WRITTEN if self._most is None else min(self._most, WRITTEN)
        return -(-(len(self._tokens) + written) // page_size)

    @property
    def open_ended(self) -> bool:
        """True if it is not known how much it may write."""
        return self._most is None

    @property
    def most_tokens(self) -> int:
        """Tokens that its text may come to have, as far as that is known."""
        return len(self._tokens) + (self._most or 1)

    def most_pages(self, page_size: int, drafted: int) -> int:
        """Pages that it may come to hold, as far as that is known, where a step has so many of its tokens unless its request says."""
        in_step = drafted if self.drafted is None else self.drafted
        return -(-(self.most_tokens + in_step) // page_size)

    def marks(self, page_size: int) -> tuple[int, ...]:
        """The marks of its first pages; see `specsplit.prefix`."""
        if page_size not in self._marks:
            self._marks[page_size] = first_marks(self._tokens, page_size)
        return self._marks[page_size]
