"""The MLPs of a model, shared out over the ranks of a group: every rank holds 1/N of their intermediate width.

    own rows [T, H] -> padded to the most rows of any rank -> gathered from all ranks -> this rank's part of the product of all of them
    -> summed over the ranks, own rows back -> [T, H]

Every rank has to take part in every block, whether it has rows or not. A turn sees to that: it is one forward on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from specsplit.errors import RankLost
from specsplit.model.tensors.transfer import on_device
from specsplit.ranks.mesh import Mesh, Numbers


class TensorMesh(Mesh, Protocol):
    """A Mesh whose ranks exchange tensors too."""

    def assemble(self, numbers: Sequence[int] = ()) -> tuple[Numbers, ...]:
        """Wait until every rank has come here, however long loading takes it -> everybody's numbers, by rank. Raises RankLost."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done what it was asked for, captured collectives too; in a capture there is nothing to wait for.

        Raises RankLost, when another rank has not taken part in time.
        """
        ...

    def before_parting(self, work: Callable[[], object]) -> None:
        """Have `work` called before connections to the others are closed: what was captured of collectives has to be given up first."""
        ...

    def or_leave(self) -> AbstractContextManager[None]:
        """What fails in here ends the group: others wait for this rank, or their rows would be wrong without its part. Raises RankLost."""
        ...

    def gather(self, rows: Tensor) -> Tensor:
        """[most, H] of every rank -> [size * most, H], by rank. Raises RankLost."""
        ...

    def reduce_scatter(self, partial: Tensor) -> Tensor:
        """[size * most, H] of every rank -> [most, H]: this rank's rows of the sum of all. Raises RankLost."""
        ...


class Layered(Protocol):
    """What has sharded blocks: a model, or a head."""

    @property
    def config(self) -> PretrainedConfig:
        """The config of its layers, between which hidden states are `hidden_size` wide."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...


def no_rows(model: Layered) -> Tensor:
    """Hidden states of no token [0, H], as wide and of the type as those between the model's layers."""
    return torch.empty(0, model.config.hidden_size, dtype=model.dtype, device=model.device)


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Where the rows of the ranks lie in what is gathered."""

    most: int
    """Rows that each rank brings, padding included."""
    real: Tensor | None
    """Indices of what is no padding; None: there is none."""

    @classmethod
    def of(cls, rows: Sequence[int], device: torch.device) -> _Layout:
        most = max(rows)
        if min(rows) == most:
            return cls(most, None)
        real = [rank * most + row for rank, count in enumerate(rows) for row in range(count)]
        return cls(most, on_device(np.array(real), device))

    def pad(self, own: Tensor) -> Tensor:
        if len(own) == self.most:
            return own
        padded = own.new_zeros(self.most, own.shape[1])
        padded[: len(own)] = own
        return padded

    def apply(self, block: Callable[[Tensor], Tensor], gathered: Tensor) -> Tensor:
        """The block's output of all rows; of padding 0, and it is not computed."""
        if self.real is None:
            return block(gathered[None])[0]
        output = torch.zeros_like(gathered)
        output[self.real] = block(gathered.index_select(0, self.real)[None])[0]
        return output


class ShardedBlocks:
    """The sharded blocks of one model, or of one step of a head, in the order in which a forward runs them; none if it is whole.

    Outside of a turn every rank is taken to run as many rows as this one, which holds while a model is checked at load, and in captured
    forwards: their shapes are those of a bucket, and padding counts as rows.
    """

    def __init__(self, model: Layered, mesh: TensorMesh | None = None) -> None:
        self._model = model
        self._mesh = mesh
        self._blocks: list[nn.Module] = []
        self._layout: _Layout | None = None
        self._done = 0
        """Blocks that have run in this turn."""

    @property
    def alone(self) -> bool:
        """Whether there are no other ranks or processes."""
        return self._mesh is None

    def __len__(self) -> int:
        """Blocks that are shared out."""
        return len(self._blocks)

    def shard(self, block: nn.Module) -> ShardedMlp:
        """What takes the place of a layer's MLP, given this rank's part of it. To be called in the order of the layers."""
        self._blocks.append(block)
        return ShardedMlp(block, len(self._blocks) - 1, self)

    def assemble(self, numbers: Sequence[int] = ()) -> tuple[Numbers, ...]:
        """Wait until the other ranks have come so far in loading theirs -> everybody's numbers, by rank. Raises RankLost."""
        return (tuple(numbers),) if self._mesh is None else self._mesh.assemble(numbers)

    def synchronize(self) -> None:
        """Wait for the device, if there are other processes that take part in anything. Raises RankLost."""
        if self._mesh is not None:
            self._mesh.synchronize()

    def before_parting(self, work: Callable[[], object]) -> None:
        """Have `work` called before this rank parts from the others."""
        if self._mesh is not None:
            self._mesh.before_parting(work)

    @contextmanager
    def turn(self, rows: Sequence[int]) -> Iterator[None]:
        """Take part in one forward of all ranks, `rows` of them by rank. Blocks not run when it ends are run without rows of this rank.

        So every rank does the same, one that is idle or fails in the middle too. Raises RankLost.
        """
        if not self._blocks or not any(rows):
            yield
            return
        with self.or_leave():
            self._layout, self._done = _Layout.of(rows, self._model.device), 0
        try:
            yield
            self._catch_up()
            self.synchronize()
        except RankLost:
            raise
        except BaseException:
            self._catch_up()
            raise
        finally:
            self._layout = None

    def run(self, index: int, own: Tensor) -> Tensor:
        """Block `index` on the rows [T, H] of this rank, together with all other ranks. Raises RankLost."""
        if self._layout is None:
            return self._alike(index, own)
        if index != self._done:
            raise RuntimeError(f"sharded block {index} is run where {self._done} is due: a turn holds one forward")
        with self.or_leave():
            output = self._together(index, own, self._layout)
        self._done += 1
        return output

    def _alike(self, index: int, own: Tensor) -> Tensor:
        """Outside of a turn: what fails fails on all ranks."""
        assert self._mesh is not None, "there is a block, so there is a group"
        output = self._together(index, own, _Layout.of([len(own)] * self._mesh.size, own.device))
        self._mesh.synchronize()
        return output

    def _together(self, index: int, own: Tensor, layout: _Layout) -> Tensor:
        assert self._mesh is not None, "there is a block, so there is a group"
        gathered = self._mesh.gather(layout.pad(own))
        self._mesh.synchronize()  # experts ask the device for what was gathered, and wait for it without an end
        return self._mesh.reduce_scatter(layout.apply(self._blocks[index], gathered))[: len(own)]

    def or_leave(self) -> AbstractContextManager[None]:
        """What fails in here ends the group, as `TensorMesh.or_leave` has it. Raises RankLost."""
        assert self._mesh is not None, "there is a block, so there is a group"
        return self._mesh.or_leave()

    @torch.inference_mode()
    def _catch_up(self) -> None:
        for index in range(self._done, len(self._blocks)):
            with self.or_leave():
                rows = no_rows(self._model)
            self.run(index, rows)


class ShardedMlp(nn.Module):
    """Stands in the place of a decoder layer's MLP."""

    def __init__(self, block: nn.Module, index: int, blocks: ShardedBlocks) -> None:
        """`block` is this rank's part; `index` its place among all of the model."""
        super().__init__()
        self.block: Final = block
        self._index = index
        self._blocks = blocks

    def forward(self, hidden: Tensor) -> Tensor:
        """[1, T, H] -> [1, T, H]. Raises RankLost."""
        return self._blocks.run(self._index, hidden[0])[None]
