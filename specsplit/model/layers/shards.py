"""How MLPs are cut into equal parts whose outputs add up to that of the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specsplit.errors import LoadError
from specsplit.model.attention.support import refusing
from specsplit.model.layers.capture import decoder_layers
from specsplit.model.layers.sharded import Layered, ShardedBlocks, TensorMesh

_DENSE: Final = ("gate_proj", "up_proj", "down_proj")
_FUSED: Final = {"gate_up_proj", "down_proj"}
_TOLERANCE: Final = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest difference of the sum of all parts from the whole, as a share of the largest output."""
_SUPPORTED: Final = (
    "supported are MLPs of gate_proj, up_proj and down_proj, and fused experts with gate_up_proj and down_proj, "
    "as Llama, Qwen, Mistral, Qwen3-MoE and Mixtral have them"
)


def shard_mlps(model: PreTrainedModel, mesh: TensorMesh) -> ShardedBlocks:
    """Shard all decoder layers of a model; see `shard_layers`."""
    return shard_layers(model, _layers(model), mesh)


def shard_layers(model: Layered, layers: Iterable[nn.Module], mesh: TensorMesh) -> ShardedBlocks:
    """Replace the MLP of each of these decoder layers by this rank's part of it; what the other ranks hold is freed.

    Nothing is said to the other ranks yet. Raises LoadError for MLPs that cannot be cut, naming them.
    """
    blocks, checked = ShardedBlocks(model, mesh), set[type[nn.Module]]()
    for layer in layers:
        name, mlp = _mlp_of(layer)
        with torch.inference_mode(), refusing(f"{type(mlp).__name__} cannot be shared out over ranks ({_SUPPORTED})"):
            if type(mlp) not in checked:
                _check(mlp, mesh.size)
                checked.add(type(mlp))
        setattr(layer, name, blocks.shard(_cut(mlp, mesh.rank, mesh.size)))
    return blocks


def _layers(model: PreTrainedModel) -> nn.ModuleList:
    layers = decoder_layers(model)
    if layers is None:
        raise LoadError(
            f"{type(model).__name__} has no list of decoder layers, so its MLPs cannot be shared out over ranks"
        )
    return layers


def _mlp_of(layer: nn.Module) -> tuple[str, nn.Module]:
    """The only child of a decoder layer with something in it that can be cut."""
    found = [(name, child) for name, child in layer.named_children() if any(_parts(child))]
    if len(found) != 1:
        inside = ", ".join(type(child).__name__ for child in layer.children())
        raise LoadError(f"{type(layer).__name__} ({inside}) has no MLP that can be shared out over ranks: {_SUPPORTED}")
    return found[0]


def _parts(block: nn.Module) -> Iterator[nn.Module]:
    """What is cut of a block: dense MLPs and fused experts; the rest of it (routers) every rank has."""
    return (module for module in block.modules() if _is_dense(module) or _is_fused(module))


def _is_dense(module: nn.Module) -> bool:
    children = dict(module.named_children())
    return all(isinstance(children.get(name), nn.Linear) for name in _DENSE)


def _is_fused(module: nn.Module) -> bool:
    own = dict(module.named_parameters(recurse=False))
    if set(own) != _FUSED or any(each.dim() != 3 for each in own.values()):
        return False
    experts, width, intermediate = own["down_proj"].shape
    return own["gate_up_proj"].shape == (experts, 2 * intermediate, width)


def _check(block: nn.Module, size: int) -> None:
    """Raise LoadError unless the parts of a block add up to the whole on a few rows of chance."""
    weight = next(part for part in block.parameters())
    part = next(_parts(block))
    width = (
        part.get_parameter("down_proj.weight").shape[0] if _is_dense(part) else part.get_parameter("down_proj").shape[1]
    )
    rows = torch.randn(1, 4, width, generator=torch.Generator().manual_seed(0)).to(weight)
    whole: Tensor = block(rows)
    parts: list[Tensor] = []
    for rank in range(size):
        with _whole_again(block):
            parts.append(_cut(block, rank, size)(rows))
    total = torch.stack(parts).sum(0)
    if (total - whole).abs().max() > _TOLERANCE[weight.dtype] * whole.abs().max():  # NaN is left to the probe
        raise LoadError(f"the parts of {type(block).__name__} do not add up to the whole: {_SUPPORTED}")


@contextmanager
def _whole_again(block: nn.Module) -> Iterator[None]:
    """What is cut of a block in here has its parameters back afterwards.

    A copy would not do for a block of a split model: what transformers puts in the place of `forward` belongs to the original.
    """
    kept = [(module, *each) for module in block.modules() for each in module.named_parameters(recurse=False)]
    try:
        yield
    finally:
        for module, name, parameter in kept:
            module.register_parameter(name, parameter)


def _cut(block: nn.Module, rank: int, size: int) -> nn.Module:
    """The block, of which nothing but part `rank` of `size` is left."""
    for part in list(_parts(block)):
        if _is_dense(part):
            _cut_dense(part, rank, size)
        else:
            _cut_fused(part, rank, size)
    return block


def _cut_dense(mlp: nn.Module, rank: int, size: int) -> None:
    gate, up, down = (mlp.get_submodule(name) for name in _DENSE)
    for linear in (gate, up):
        for name, parameter in list(linear.named_parameters()):
            linear.register_parameter(name, _own([parameter], 0, rank, size))
    down.register_parameter("weight", _own([down.get_parameter("weight")], 1, rank, size))
    if rank:
        down.register_parameter("bias", None)  # rank 0 adds it


def _cut_fused(experts: nn.Module, rank: int, size: int) -> None:
    gate_up, down = experts.get_parameter("gate_up_proj"), experts.get_parameter("down_proj")
    experts.register_parameter("gate_up_proj", _own(gate_up.chunk(2, dim=1), 1, rank, size))
    experts.register_parameter("down_proj", _own([down], 2, rank, size))


def _own(halves: Sequence[Tensor], along: int, rank: int, size: int) -> nn.Parameter:
    """Part `rank` of each, side by side, in memory of their own."""
    width = halves[0].shape[along]
    if width % size:
        raise LoadError(f"its intermediate width of {width} is no multiple of the {size} ranks (dp_size)")
    own = [half.detach().narrow(along, rank * (width // size), width // size) for half in halves]
    return nn.Parameter(torch.cat(own, along).clone(memory_format=torch.contiguous_format), requires_grad=False)
