"""Which blocks of tokens the prefix cache has, for those who choose a verifier by that. Belongs to the engine thread.

The cache knows a page by its digest alone. Here stand its tokens, so that whoever begins to watch can be told all that is there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specsplit.engine import Block, BlockChange, BlocksRemoved, BlocksStored
from specsplit_verifier.records.events import WatchBlocks


class BlockLog:
    """The blocks that are there, and what has changed of them since the watcher was told last."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, Block] = {}
        self._changes: list[BlockChange] = []
        self._watcher: WatchBlocks | None = None

    def __len__(self) -> int:
        return len(self._blocks)

    def watch(self, watcher: WatchBlocks | None) -> None:
        """Tell a watcher what is there, and from now on what changes. The one before hears no more; None: nobody does."""
        self.tell()
        self._watcher = watcher
        if watcher is not None:
            watcher.begin([*self._blocks.values()])

    def tell(self) -> None:
        """Tell the watcher what has changed."""
        if self._changes:
            changes, self._changes = self._changes, []
            if self._watcher is not None:
                self._watcher.changed(changes)

    def stored(
        self, digests: Sequence[bytes], first: int, new: Collection[bytes], tokens: Sequence[int], adapter: str = ""
    ) -> None:
        """Note which pages of a text, from its page number `first` on, are `new` in the cache.

        `digests`: those of its pages from the front; `tokens`: those of its pages from number `first` on.
        `adapter`: with which they were computed.
        """
        size = len(tokens) // (len(digests) - first)
        blocks = [
            Block(digest, digests[number - 1] if number else b"", tuple(tokens[start : start + size]), adapter)
            for number, (digest, start) in enumerate(
                zip(digests[first:], range(0, len(tokens), size), strict=True), first
            )
            if digest in new
        ]
        self._blocks.update((block.digest, block) for block in blocks)
        self._note(BlocksStored(blocks))

    def removed(self, digests: Collection[bytes]) -> None:
        """Note blocks that are gone; those that were not there are let pass."""
        gone = [digest for digest in digests if self._blocks.pop(digest, None) is not None]
        if gone:
            self._note(BlocksRemoved(gone))

    def _note(self, change: BlockChange) -> None:
        if self._watcher is not None:
            self._changes.append(change)
