"""A linear layer whose output is that of its own weights and, for the tokens of an adapter, what that adds.

T   tokens of a forward        r   rank of an adapter
"""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor, nn
from torch.nn.functional import linear

from specsplit.errors import LoadError
from specsplit.model.adapters.folder import LowRank
from specsplit.model.adapters.shares import Shares, Tokens
from specsplit.model.adapters.stack import Stack
from specsplit.model.native import library
from specsplit.model.native.low_rank import LowRankKernel
from specsplit.model.tensors.transfer import on_device


class AdaptedLinear(nn.Module):
    """Stands in the place of a linear layer. Adding to its output leaves the weights shared by all rows of a forward."""

    def __init__(self, name: str, inner: nn.Linear, shares: Shares) -> None:
        """name: of the layer, for messages. shares: of the forward under way, always the same object."""
        super().__init__()
        self.name: Final = name
        self.inner: nn.Module = inner
        self.in_features: Final = inner.in_features
        self.out_features: Final = inner.out_features
        self._shares: Final = shares
        self._added: Final[dict[int, _Added]] = {}
        self._kernel: LowRankKernel | None = None
        self._stack: Stack | None = None

    @property
    def weight(self) -> Any:
        """The base's own: some models ask for its type."""
        return self.inner.weight

    @property
    def bias(self) -> Any:
        """The base's own."""
        return self.inner.bias

    @property
    def adapters(self) -> frozenset[int]:
        """Numbers of all that add something here."""
        return frozenset(self._added)

    def add(self, adapter: int, low_rank: LowRank) -> None:
        """Have an adapter add something. Raises LoadError for matrices that do not fit, or are not finite in the type of the layer."""
        widths = low_rank.down.shape[1], low_rank.up.shape[0]
        if widths != (self.in_features, self.out_features):
            raise LoadError(
                f"its matrices for {self.name} go from {widths[0]} to {widths[1]}: expected {self.in_features} to {self.out_features}, as "
                "the target has it; it was trained for another model"
            )
        if adapter in self._added:
            raise LoadError(f"it has matrices for {self.name} twice, by two names")
        added = _Added(low_rank, self.weight)
        self.add_module(f"adapter_{adapter}", added)
        self._added[adapter] = added

    def pack(self, count: int) -> None:
        """Have a CPU add in one call what all of `count` adapters add, where there is a kernel for the type."""
        self._kernel = self.kernel(count)

    def stack(self, count: int) -> None:
        """Have a GPU add in one go what all of `count` adapters add. Imports triton."""
        self._stack = Stack(count, {number: (added.down, added.up) for number, added in self._added.items()})
        for number, added in self._added.items():
            added.lie_in(self._stack.of(number))

    def kernel(self, count: int) -> LowRankKernel | None:
        """What all of `count` adapters add, in float32, as kernels for a CPU read it; None: there are none."""
        if library.obstacle() is not None:
            return None
        pairs = {number: (added.down.float(), added.up.float()) for number, added in self._added.items()}
        return LowRankKernel(count, pairs, self.in_features, self.out_features)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out]; the tokens of a forward in its order, all of them, if any of them has an adapter."""
        out = self.inner(rows)
        return self._adapted(rows, out) if self._shares.some else out

    def _adapted(self, rows: Tensor, out: Tensor) -> Tensor:
        flat, sums = rows.reshape(-1, self.in_features), out.reshape(-1, self.out_features)
        if len(flat) != self._shares.tokens:
            raise LoadError(
                f"{self.name} is run on {len(flat)} of {self._shares.tokens} tokens: only layers can be adapted that are run on all tokens "
                "of a forward at once, and not experts or recurrent layers"
            )
        if self._stack is not None:
            self._stack.add(self._shares.segments(flat.device), flat, sums)
            return sums.view(out.shape)
        tiles = None if self._kernel is None else self._shares.tiles()
        if self._kernel is not None and tiles is not None:
            wide = sums.float()  # of a narrower type a copy, in which rows without an adapter keep their bits
            self._kernel.add(tiles, flat.float(), wide)
            return wide.to(out.dtype).view(out.shape)
        for share in self._shares.adapted:
            added = self._added.get(share.adapter)
            if added is not None:
                added.add_to(sums, flat, share.tokens)
        return sums.view(out.shape)


class _Added(nn.Module):
    """The two matrices, as parameters: they count as weights of the model."""

    def __init__(self, low_rank: LowRank, like: Tensor) -> None:
        """like: a weight of the type and on the device that they shall have."""
        super().__init__()
        self.down = _parameter(low_rank.down, like)
        self.up = _parameter(low_rank.up, like)

    def lie_in(self, matrices: tuple[Tensor, Tensor]) -> None:
        """Have the same numbers in the place where others hold them too."""
        self.down, self.up = (nn.Parameter(each, requires_grad=False) for each in matrices)

    def add_to(self, sums: Tensor, rows: Tensor, tokens: Tokens) -> None:
        """Add (x down^T) up^T of these tokens of rows [T, in] to sums [T, out], in place."""
        low = linear(rows[tokens], self.down)
        if isinstance(tokens, slice):
            sums[tokens].addmm_(low, self.up.t())
        else:
            sums.index_add_(0, tokens, linear(low, self.up))


def _parameter(matrix: Tensor, like: Tensor) -> nn.Parameter:
    made = on_device(matrix.to(like.dtype), like.device)
    if not made.isfinite().all():
        raise LoadError(
            f"it has NaN or infinity in {like.dtype}: are its weights broken, or larger than that type holds?"
        )
    return nn.Parameter(made.contiguous(), requires_grad=False)
