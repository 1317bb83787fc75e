"""The parts of a decoder layer of Llama and its descendants, by the names that transformers gives them.

What may stand for a module is made of its parts. Whether it then does the same is not looked at here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from torch import Tensor, nn

_DECODER: Final = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
_MLP: Final = ("gate_proj", "up_proj", "down_proj")
_PROJECTIONS: Final = ("q_proj", "k_proj", "v_proj")
_OUTPUT: Final = "o_proj"
_NORMS: Final = ("q_norm", "k_norm")


class AttentionLayer(Protocol):
    """What transformers' attention modules have besides their children."""

    layer_idx: int
    head_dim: int
    scaling: float


class AttentionParts(NamedTuple):
    """An attention module, and its children."""

    module: AttentionLayer
    projections: Sequence[Any]
    """Linear layers that make queries, keys and values."""
    output: nn.Module
    norms: Sequence[nn.Module]
    """Of the heads of queries, and of keys; or none."""

    @classmethod
    def of(cls, module: Any) -> AttentionParts | None:
        """None: the module has other children, or more to it."""
        parts = dict[str, Any](module.named_children())
        if not {*_PROJECTIONS, _OUTPUT} <= set(parts) <= {*_PROJECTIONS, _OUTPUT, *_NORMS}:
            return None
        if not all(hasattr(module, name) for name in AttentionLayer.__annotations__) or has_own_numbers(module):
            return None  # numbers of its own: such as sinks, of which its attention is told
        projections, norms = [parts[name] for name in _PROJECTIONS], [parts[name] for name in _NORMS if name in parts]
        return cls(module, projections, parts[_OUTPUT], norms)

    @property
    def heads(self) -> tuple[int, int]:
        """How many heads queries have, and keys."""
        queries, keys, _ = (each.out_features // self.module.head_dim for each in self.projections)
        return queries, keys


class JoinedAttention(nn.Module):
    """What attention modules have that make queries, keys and values by one product."""

    def __init__(self, parts: AttentionParts, qkv: nn.Module, output: nn.Module, norms: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layer_idx: Final = parts.module.layer_idx
        self.qkv = qkv
        self.output = output
        self.norms = nn.ModuleList(norms)
        self.heads: Final = parts.heads
        self.head_width: Final = parts.module.head_dim
        self.scaling: Final = parts.module.scaling


class MlpParts(NamedTuple):
    """down(act(gate(x)) * up(x))"""

    gate: nn.Module
    up: nn.Module
    down: nn.Module

    @classmethod
    def of(cls, module: nn.Module) -> MlpParts | None:
        """None: the module has other children, or more to it."""
        parts = dict(module.named_children())
        if not set(_MLP) <= set(parts) <= {*_MLP, "act_fn"} or has_own_numbers(module):
            return None
        return cls(*(parts[name] for name in _MLP))


class DecoderParts(NamedTuple):
    """y = x + attention(first(x)), and y + mlp(second(y))"""

    first: nn.Module
    attention: nn.Module
    second: nn.Module
    mlp: nn.Module

    @classmethod
    def of(cls, layer: nn.Module) -> DecoderParts | None:
        """None: the layer has other children, or more to it."""
        parts = dict(layer.named_children())
        if set(parts) != set(_DECODER) or has_own_numbers(layer):
            return None
        return cls(*(parts[name] for name in _DECODER))


class NormParts(NamedTuple):
    """x / sqrt(mean(x^2) + epsilon) * weight"""

    weight: Tensor
    epsilon: float

    @classmethod
    def of(cls, module: nn.Module) -> NormParts | None:
        """None: the module has other parameters."""
        own, epsilon = dict(module.named_parameters()), getattr(module, "variance_epsilon", None)
        if set(own) != {"weight"} or not isinstance(epsilon, float) or own["weight"].dim() != 1:
            return None
        return cls(own["weight"], epsilon)


def has_own_numbers(module: nn.Module) -> bool:
    """Whether a module has parameters or buffers beside those of its parts: it then does more than these do."""
    return any(True for each in (module.parameters, module.buffers) for _ in each(recurse=False))


def take_words(made: nn.Module, layer: nn.Module) -> None:
    """Have `made` say what `layer` says in words: some models ask what a layer sees."""
    for name, value in vars(layer).items():
        if isinstance(value, str):
            setattr(made, name, value)
