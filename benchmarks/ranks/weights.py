"""How many bytes of a target's weights a rank of a group holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from specsplit.errors import RankLost
from specsplit.model.lm.load import load_model
from specsplit.ranks.mesh import LocalMesh, Numbers


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of the weights that one rank holds."""

    sharded: int
    """Bytes of what ranks share: MLPs."""
    whole: int
    """Bytes of what every rank has."""


class _Part(LocalMesh):
    """A place in a group of which nobody else is there, so that a part can be cut and looked at, and not run."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def assemble(self, numbers: Sequence[int] = ()) -> tuple[Numbers, ...]:
        raise self.abort("")

    def synchronize(self) -> None:
        raise self.abort("")

    def before_parting(self, work: Callable[[], object]) -> None:
        raise self.abort("")

    def or_leave(self) -> AbstractContextManager[None]:
        raise self.abort("")

    def gather(self, rows: Tensor) -> Tensor:
        raise self.abort("")

    def reduce_scatter(self, partial: Tensor) -> Tensor:
        raise self.abort("")

    def abort(self, why: str) -> RankLost:
        return RankLost(f"rank {self.rank} of {self.size} has no others: {why or 'its part is only looked at'}")


def weights(model: Path, size: int) -> Weights:
    """What the last of `size` ranks loads. Raises LoadError."""
    module, _, _ = load_model(model, mesh=_Part(size - 1, size))
    sharded = sum(_bytes(part) for name, part in module.named_modules() if name.endswith(".mlp"))
    return Weights(sharded, _bytes(module) - sharded)


def _bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
