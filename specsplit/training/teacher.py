"""The target as a teacher: the texts that it writes, and the hidden states and choices that it has along a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import torch
from torch import Tensor

from specsplit.model import CausalLM, PageTable, Row
from specsplit.training.prompts import Tokens
from specsplit.values import ModelInfo

_PAGE: Final = 16
_KV_TOKENS: Final = 16384
"""Tokens whose keys and values are kept at once, unless one text alone needs more."""
_MOST_ROWS: Final = 32
_CHUNK: Final = 256
"""Tokens of a text that are read in one forward: their logits are all there at once."""


@dataclass(frozen=True)
class Task:
    """A prompt that the target is to go on from."""

    index: int
    """Whose it is, for the caller."""
    prompt: Tokens
    most: int
    """Tokens that are written at most."""
    temperature: float
    """0 is greedy."""
    seed: int


@dataclass(frozen=True)
class Reading:
    """A text as the target read it, T tokens."""

    hidden: Tensor
    """[T, layers, H] hidden states, in the target's dtype and the order that they were asked for in."""
    chosen: Tensor
    """[T] int64: the token that the target takes for the likeliest behind each."""


class Teacher:
    """A target, loaded as a verifier loads it."""

    def __init__(self, lm: CausalLM, rows: int) -> None:
        """`rows`: texts that it writes at once; it has the pages for them."""
        self._lm: Final = lm
        self._rows: Final = rows

    @classmethod
    def load(cls, folder: Path, *, longest: int, dtype: str, device: str) -> Self:
        """Load the target for texts of `longest` tokens at most. Raises LoadError if it cannot be served."""
        rows = max(1, min(_MOST_ROWS, _KV_TOKENS // longest))
        pages = rows * -(-longest // _PAGE)
        return cls(CausalLM.load(folder, num_pages=pages, page_size=_PAGE, dtype=dtype, device=device), rows)

    @property
    def info(self) -> ModelInfo:
        """Facts of the target."""
        return self._lm.info

    def write(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Tokens]]:
        """Go on from all prompts, several at once -> each task with what was written, an end token included, as they are done.

        What is written to one prompt does not depend on the others, but for rounding.
        """
        waiting = list(reversed(tasks))
        active: list[_Writing] = []
        try:
            while waiting or active:
                while waiting and len(active) < self._rows:
                    active.append(_Writing(waiting.pop(), self._lm))
                self._step(active)
                ended = [writing for writing in active if writing.ended(self._lm.info.eos_token_ids)]
                for writing in ended:
                    active.remove(writing)
                    writing.table.release()
                    yield writing.task, tuple(writing.written)
        finally:
            for writing in active:
                writing.table.release()

    def read(self, tokens: Tokens, layers: Sequence[int]) -> Reading:
        """Read a text. `layers` are numbered as in FeatureNeed.layers; raises Incompatible for one that the target does not have."""
        table = PageTable(self._lm.pool)
        hidden: list[Tensor] = []
        chosen: list[Tensor] = []
        try:
            for first in range(0, len(tokens), _CHUNK):
                piece = tokens[first : first + _CHUNK]
                table.reserve(first + len(piece))
                row = Row.chunk(piece, table.upto(first + len(piece)), range(len(piece)))
                logits, captured = self._lm.forward_capturing([row], layers)
                self._lm.keep_states([(row, row.num_tokens - 1)])
                hidden.append(torch.stack([captured[layer] for layer in layers], dim=1).cpu())
                chosen.append(logits.argmax(-1).cpu())
        finally:
            table.release()
        return Reading(torch.cat(hidden), torch.cat(chosen))

    def _step(self, active: Sequence[_Writing]) -> None:
        """Every text gets a token, behind its prompt if it has none yet."""
        fresh = [writing for writing in active if not writing.written]
        for writing in fresh:
            self._forward([writing])
        if going := [writing for writing in active if writing not in fresh]:
            self._forward(going)

    def _forward(self, writings: Sequence[_Writing]) -> None:
        rows = [row for writing in writings for row in [writing.row()]]
        logits = self._lm.forward(rows)
        self._lm.keep_states([(row, row.num_tokens - 1) for row in rows])
        for writing, each in zip(writings, logits.float().cpu(), strict=True):
            writing.take(each)


class _Writing:
    """One text that is being written."""

    def __init__(self, task: Task, lm: CausalLM) -> None:
        self.task: Final = task
        self.written: list[int] = []
        self.table: Final = PageTable(lm.pool)
        self._chance: Final = torch.Generator().manual_seed(task.seed)

    def row(self) -> Row:
        """The tokens whose keys and values the target lacks."""
        length = len(self.task.prompt) + len(self.written)
        self.table.reserve(length)
        fed = self.written[-1:] or self.task.prompt
        return Row.chunk(fed, self.table.upto(length), [len(fed) - 1])

    def take(self, logits: Tensor) -> None:
        """Pick a token by its logits [V]."""
        if self.task.temperature == 0:
            picked = int(logits.argmax())
        else:
            picked = int(torch.multinomial((logits / self.task.temperature).softmax(-1), 1, generator=self._chance))
        self.written.append(picked)

    def ended(self, ends: Sequence[int]) -> bool:
        """Whether its end has come, or it is as long as it may be."""
        return self.written[-1] in ends or len(self.written) >= self.task.most
