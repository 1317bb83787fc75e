"""The memory of captured forwards: what they read, what they attend to, what they leave.

T   tokens of a bucket        B   rows of a bucket
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from specsplit.model.attention.interface import ForwardBatch
from specsplit.model.graphs.capturer import Results
from specsplit.model.pages.batch import Row, causal_mask
from specsplit.model.pages.buckets import Bucket
from specsplit.model.pages.tables import PageTables, RowPages
from specsplit.model.tensors.upload import Upload

_FIELDS: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What a captured forward of one bucket reads, int64 [T] each: views of memory that stays where it is."""

    tokens: Tensor
    positions: Tensor
    write_slots: Tensor
    """Where the KV of the tokens goes; that of padding goes to the spare page."""
    window_write_slots: Tensor
    """Where it goes in layers that see a window."""
    logits_at: Tensor
    """Indices into T of the tokens whose logits are wanted, row by row in the order each row asked, then zeros."""


class StaticInputs:
    """The inputs of all buckets of one runner, in one piece of memory: a forward's are copied there at once."""

    def __init__(self, tables: PageTables, spare_page: int, most_tokens: int, device: torch.device) -> None:
        """`spare_page` is in the KV cache, and nobody's: padding lives there."""
        self._tables: Final = tables
        self._spare_page: Final = spare_page
        self._upload: Final = Upload(_FIELDS * most_tokens, torch.int64, device)
        self._paddings: dict[int, Row] = {}
        """By number of tokens."""

    @property
    def device(self) -> torch.device:
        """Where captured forwards read them."""
        return self._upload.memory.device

    def of(self, bucket: Bucket) -> Inputs:
        """What a captured forward of this size reads."""
        return Inputs(*self._upload.memory[: _FIELDS * bucket.tokens].view(_FIELDS, bucket.tokens))

    def padded(self, rows: Sequence[Row], bucket: Bucket) -> list[Row]:
        """The rows, and one more that makes T tokens of them if they are fewer: a chunk on the spare page, over and over."""
        missing = bucket.tokens - sum(row.num_tokens for row in rows)
        return [*rows, self._padding(missing)] if missing else list(rows)

    def _padding(self, count: int) -> Row:
        row = self._paddings.get(count)
        if row is None:
            nothing = np.zeros(count, dtype=np.int64)
            pages = np.full(-(-count // self._tables.page_size), self._spare_page, dtype=np.int64)
            row = self._paddings[count] = Row(nothing, nothing, RowPages.alone(pages, count), causal_mask(count))
        return row

    def load(self, rows: Sequence[Row], bucket: Bucket, half: int) -> None:
        """Copy what `padded` has made of the rows to the device."""
        count = bucket.tokens
        fields = self._upload.host(half)[: _FIELDS * count].reshape(_FIELDS, count)
        fields[4] = 0
        start = wanted = 0
        for row in rows:
            stop = start + row.num_tokens
            fields[0, start:stop] = row.tokens
            fields[1, start:stop] = row.positions
            fields[2, start:stop] = self._tables.last_slots(row.pages, row.num_tokens)
            fields[4, wanted : wanted + len(row.logits_at)] = row.logits_at
            fields[4, wanted : wanted + len(row.logits_at)] += start
            start, wanted = stop, wanted + len(row.logits_at)
        fields[3] = fields[2] if self._tables.windows is None else self._tables.windows.slots_of(fields[2])
        self._upload.send(half, _FIELDS * count)


class StaticOutputs:
    """Where all captured forwards of a runner leave their results, each in the place of its name: a replay overwrites the one before."""

    def __init__(self) -> None:
        self._memory: dict[Hashable, Tensor] = {}

    def keep(self, results: Results) -> Results:
        """Copy results to their places -> views of those. What comes first under a name should be the largest to come."""
        return {name: self._buffer(name, result)[: len(result)].copy_(result) for name, result in results.items()}

    def _buffer(self, name: Hashable, result: Tensor) -> Tensor:
        buffer = self._memory.get(name)
        if buffer is None or len(buffer) < len(result):
            buffer = self._memory[name] = torch.empty_like(result)
        return buffer


Form = Hashable
"""One of the ways in which a backend attends; each is captured by itself, since its kernels are others."""


class StaticAttention(Protocol):
    """How the captured forwards of one runner attend: their layouts lie in memory that stays where it is."""

    @property
    def forms(self) -> Sequence[Form]:
        """All that are captured for each bucket, the one that costs the least first."""
        ...

    def fitting(self, rows: Sequence[Row]) -> Collection[Form]:
        """Forms that pay for rows (at least one), with whatever padding behind them. None if there is no memory to lay them out in."""
        ...

    def forward(self, bucket: Bucket, form: Any, write_slots: tuple[Tensor, Tensor]) -> ForwardBatch:
        """What a captured forward hands to its attention layers; it attends as was planned last for this bucket and form.

        `write_slots` [T]: of layers that see all tokens, and of those that see a window.
        """
        ...

    def plan(self, rows: Sequence[Row], bucket: Bucket, form: Any, half: int) -> None:
        """Plan rows that fill the bucket, in a form that is fitting but for the padding among them, and copy that to the device.

        `half`: which of two host memories is free (`Halves`).
        """
        ...
