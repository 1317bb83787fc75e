"""A whole decoder layer of Llama and its descendants: kernels in C before and behind its attention.

T   tokens      W   width of a hidden state      D   width of a head
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from torch import Tensor, nn

from specsplit.model.attention.interface import ForwardBatch, ReadForward
from specsplit.model.layers.cpu.attention import RotaryAttention
from specsplit.model.layers.cpu.linear import PackedLinear
from specsplit.model.layers.cpu.mlp import NativeMlp
from specsplit.model.layers.cpu.norm import RmsNorm
from specsplit.model.layers.parts import DecoderParts, take_words
from specsplit.model.native.decoder import Adapted, DecoderKernel, Heads, Norm, Products
from specsplit.model.native.low_rank import Tiles
from specsplit.model.native.weights import Weights


class AdaptedRows(Protocol):
    """Says which tokens of the forward under way have adapters."""

    def tiles(self, at: Tensor | None = None) -> Tiles | None:
        """All of them, or of those at these indices [n], by their places in it; None: no row of the forward has an adapter."""
        ...


class NativeLayer(nn.Module):
    """x + attention(norm(x)), and of that y + mlp(norm(y))."""

    def __init__(self, attention: RotaryAttention, kernel: DecoderKernel) -> None:
        super().__init__()
        self.layer_idx: Final = attention.layer_idx
        self.sizes: Final = kernel.sizes
        self._kernel: Final = kernel
        self._queries, self._keys = attention.heads
        self._scaling: Final = attention.scaling
        self._rows: AdaptedRows | None = None

    def adapt(self, adapted: Adapted, rows: AdaptedRows) -> None:
        """Have adapters add this to the tokens that they are for. Raises ValueError for what does not fit."""
        self._kernel.adapt(adapted)
        self._rows = rows

    @classmethod
    def like(cls, layer: nn.Module) -> NativeLayer | None:
        """What may stand for a layer whose parts were replaced; None: this one is built otherwise. Whether it does the same is not looked
        at."""
        parts = DecoderParts.of(layer)
        if parts is None or not isinstance(parts.attention, RotaryAttention) or not isinstance(parts.mlp, NativeMlp):
            return None
        first, second = _norm(parts.first), _norm(parts.second)
        if first is None or second is None:
            return None
        attention, mlp = parts.attention, parts.mlp
        projections, output, norms = (
            _weights(attention.qkv),
            _weights(attention.output),
            [_norm(each) for each in attention.norms],
        )
        if projections is None or output is None or None in norms:
            return None
        of_queries, of_keys = norms or (None, None)
        count, kv_count = attention.heads
        heads = Heads(count, kv_count, attention.head_width, of_queries, of_keys)
        made = cls(attention, DecoderKernel(heads, first, second, Products(projections, output, mlp.weights)))
        take_words(made, layer)
        return made

    @property
    def packed_tensors(self) -> list[Tensor]:
        """See `specsplit.model.layers.weights`."""
        return self._kernel.tensors

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        *,
        forward_batch: ForwardBatch,
        **_: Any,
    ) -> Tensor:
        """[1, T, W], and cos and sin [1, T, D] -> [1, T, W]; the last layer of a ReadForward [1, n, W], of its tokens."""
        tiles = None if self._rows is None else self._rows.tiles()
        heads_first = self._kernel.project(hidden_states, *position_embeddings, tiles).transpose(0, 1).unsqueeze(0)
        queries, keys, values = heads_first.split((self._queries, self._keys, self._keys), dim=1)
        if isinstance(forward_batch, ReadForward) and forward_batch.last == self.layer_idx:
            queries, hidden_states = queries[:, :, forward_batch.tokens], hidden_states[:, forward_batch.tokens]
            if self._rows is not None and tiles is not None:
                tiles = self._rows.tiles(forward_batch.tokens)
            forward_batch = forward_batch.read
        seen = forward_batch.attend(self.layer_idx, queries, keys, values, self._scaling, {})
        return self._kernel.finish(hidden_states, seen, tiles)


def _norm(module: nn.Module) -> Norm | None:
    return Norm(module.weight, module.epsilon) if isinstance(module, RmsNorm) else None


def _weights(linear: nn.Module) -> Weights | None:
    return linear.packed if isinstance(linear, PackedLinear) and isinstance(linear.packed, Weights) else None
