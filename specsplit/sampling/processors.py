"""What is done to logits before the temperature, in the order of Hugging Face: bias, repetition penalty, then frequency and presence.

The repetition penalty is Hugging Face's and about every token of the text so far; the other two are OpenAI's and about those that were
generated. The text so far, behind a node, is what is committed and the path from below the root to the node.

    S   sessions      P   rows that are processed      V   vocabulary      K   tokens that a session biases, or that its text holds
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specsplit.model.tensors.transfer import on_device
from specsplit.sampling.counts import TokenCounts
from specsplit.values import Sampling


class OwnedRows:
    """P rows of contiguous logits [R, V], each with the session that it is of."""

    def __init__(self, places: Sequence[int], owners: Sequence[int], vocab_size: int, device: torch.device) -> None:
        self.places = places
        """Which rows they are."""
        self.owners = owners
        self._vocab_size = vocab_size
        self._starts = on_device(np.array(places, dtype=np.int64) * vocab_size, device)[:, None]
        self._owners = on_device(np.array(owners, dtype=np.int64), device)

    def cells(self, tokens: Tensor) -> Tensor:
        """tokens [S, K] of each session -> where every row has their logits, [P, K] indices into all logits end to end."""
        return self._starts + tokens[self._owners]

    def cell(self, row: int, token: int) -> int:
        """Where one of the P rows has the logit of one token, an index into all logits end to end."""
        return self.places[row] * self._vocab_size + token

    def each(self, columns: Tensor) -> Tensor:
        """Spread what is [S, K] of each session to its rows [P, K]."""
        return columns[self._owners]


class LogitBias:
    """The biases of some sessions."""

    def __init__(self, samplings: Sequence[Sampling], device: torch.device) -> None:
        tokens = [torch.tensor([token for token, _ in s.logit_bias], dtype=torch.int64) for s in samplings]
        values = [torch.tensor([bias for _, bias in s.logit_bias], dtype=torch.float32) for s in samplings]
        padded = (pad_sequence(each, batch_first=True).numpy() for each in (tokens, values))
        self._tokens, self._values = (on_device(each, device) for each in padded)

    def add_to(self, logits: Tensor, rows: OwnedRows) -> None:
        """In place, to contiguous logits [R, V]. What sessions have fewer of is made up for with 0 for token 0."""
        logits.view(-1).index_add_(0, rows.cells(self._tokens).flatten(), rows.each(self._values).flatten())


class Penalties:
    """The penalties of some sessions."""

    def __init__(
        self, samplings: Sequence[Sampling], counts: Sequence[TokenCounts | None], device: torch.device
    ) -> None:
        self._counts = counts
        self._device = device
        numbers = [(s.repetition_penalty, s.frequency_penalty, s.presence_penalty) for s in samplings]
        columns = on_device(np.array(numbers, dtype=np.float32), device).view(-1, 3)
        self._repetition, self._frequency, self._presence = columns.split(1, dim=1)

    def impose_on(self, logits: Tensor, rows: OwnedRows, paths: Sequence[Sequence[int]]) -> None:
        """In place, on contiguous logits [R, V]. paths [P]: behind every row, what its text has beyond what is committed."""
        tokens, times = self._committed()
        committed = rows.cells(tokens), rows.each(self._repetition), rows.each(self._cost(slice(None), times))
        cells, owners, times = self._drafted(rows, paths)
        drafted = cells, self._repetition[owners], self._cost(owners, times)
        edits = [(cells, _penalised(logits.take(cells), factor, cost)) for cells, factor, cost in (committed, drafted)]
        for cells, values in edits:  # what is drafted was counted on top of what is committed, and has the last word
            logits.put_(cells, values)

    def _cost(self, owners: Tensor | slice, times: Tensor) -> Tensor:
        return self._frequency[owners] * times + self._presence[owners] * (times > 0)

    def _committed(self) -> tuple[Tensor, Tensor]:
        """Tokens of every session's text, and how often they were generated, [S, K] each; short ones say their first again."""
        nothing = torch.empty(0, dtype=torch.int64, device=self._device), torch.empty(0, device=self._device)
        each = [nothing if counts is None else counts.tensors(self._device) for counts in self._counts]
        tokens = pad_sequence([tokens for tokens, _ in each], batch_first=True, padding_value=-1)
        times = pad_sequence([times for _, times in each], batch_first=True)
        known = tokens >= 0
        return tokens.where(known, tokens[:, :1]), times.where(known, times[:, :1])

    def _drafted(self, rows: OwnedRows, paths: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Cells of the tokens on paths, their sessions, and how often they were generated, committed ones included: [n, 1] each."""
        found = [
            (rows.cell(row, token), owner, counts.generated(token) + path.count(token))
            for row, (owner, path) in enumerate(zip(rows.owners, paths, strict=True))
            if (counts := self._counts[owner]) is not None
            for token in set(path)
        ]
        cells, owners, times = on_device(np.array(found, dtype=np.int64), self._device).view(-1, 3).unbind(1)
        return cells[:, None], owners, times[:, None]


def _penalised(logits: Tensor, repetition: Tensor, cost: Tensor) -> Tensor:
    return torch.where(logits < 0, logits * repetition, logits / repetition) - cost
