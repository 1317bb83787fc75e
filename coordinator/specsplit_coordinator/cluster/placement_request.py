"""What a session asks of the verifier that it is to be placed on: room in its context and KV pool. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specsplit.prefix import first_marks
from specsplit.values import Adapter, Load, pages_held

EXPECTED_NEW_TOKENS = 256
"""New tokens that pages are set aside for when a session is placed, at most: it takes pages as it goes on, and may end long before its
max_tokens."""


class PlacementRequest:
    """The text of a session so far, how much may follow, and which verifiers have failed on it."""

    def __init__(
        self,
        tokens: Sequence[int] = (),
        max_new_tokens: int | None = None,
        num_draft_tokens: int | None = None,
        failed_on: Collection[str] = (),
        adapter: Adapter | None = None,
    ) -> None:
        """`max_new_tokens`: None if it is not known. `num_draft_tokens`: its tokens in one step at most; None if its request does not say.

        `failed_on`: verifiers, by member id, whose targets have failed on this session. `adapter`: the target's that it is decoded with.
        """
        self._tokens = tokens
        self._max_new_tokens = max_new_tokens
        self.num_draft_tokens = num_draft_tokens
        self.failed_on = failed_on
        self.adapter = adapter
        self._marks: dict[int, tuple[int, ...]] = {}
        """Marks of the text's first pages, by page size."""

    def pages(self, load: Load) -> int:
        """KV pages that should be free for it when it is placed on a verifier with this load, which has told the size of its pages."""
        return self._pages_within(load, load.kv_window)

    def window_pages(self, load: Load) -> int:
        """Window pages that should be free for it, where layers that see a window have pages of their own."""
        return min(load.window_pages, self._pages_within(load, load.layer_window))

    def _pages_within(self, load: Load, window: int) -> int:
        new = EXPECTED_NEW_TOKENS if self._max_new_tokens is None else min(self._max_new_tokens, EXPECTED_NEW_TOKENS)
        return pages_held(len(self._tokens) + new, self.num_draft_tokens or 0, load.page_size, window)

    @property
    def _salt(self) -> bytes:
        return b"" if self.adapter is None else self.adapter.salt

    @property
    def open_ended(self) -> bool:
        """True if it is not known how many tokens may follow."""
        return self._max_new_tokens is None

    @property
    def max_length(self) -> int:
        """Tokens that its text may grow to, as far as that is known."""
        return len(self._tokens) + (self._max_new_tokens or 1)

    def max_pages(self, load: Load, default_draft_tokens: int) -> int:
        """KV pages that it may grow to on such a verifier, as far as that is known.

        `default_draft_tokens` counts if the request gives no number.
        """
        in_step = default_draft_tokens if self.num_draft_tokens is None else self.num_draft_tokens
        return pages_held(self.max_length + in_step, in_step, load.page_size, load.kv_window)

    def marks(self, page_size: int) -> tuple[int, ...]:
        """The marks of the first pages of its text, computed with its adapter; see `specsplit.prefix`."""
        if page_size not in self._marks:
            self._marks[page_size] = first_marks(self._tokens, page_size, self._salt)
        return self._marks[page_size]
