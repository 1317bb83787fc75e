"""A model that is split over several processes by transformers' own plan for it (`tp_plan`): heads, MLPs, experts and vocabulary.

Every process reads its part of the weights out of the model folder, and no more. Hidden states between two layers, and logits, are whole
in every process: transformers adds up, or joins, what the parts give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, __version__
from transformers.distributed.configuration_utils import DistributedConfig

from specsplit.errors import LoadError

TP: Final = "tp"
"""The dimension along which transformers splits a model."""
OLD: Final = "device_mesh" in signature(PreTrainedModel.prepare_distribute_model).parameters
"""True for transformers 5.17, which hands one DeviceMesh around and not what has several (5.23)."""
_HEADS: Final = {"attention heads": "num_attention_heads", "KV heads": "num_key_value_heads"}


def check_split(config: PretrainedConfig, size: int) -> None:
    """Raise LoadError unless transformers can split this model in `size` equal parts."""
    if not config.base_model_tp_plan:
        raise LoadError(
            f"transformers has no plan (base_model_tp_plan) by which to split {config.model_type} over {size} processes (tp_size)"
        )
    for what, field in _HEADS.items():
        count = getattr(config, field, size)
        if count % size:
            raise LoadError(
                f"its {count} {what} are no multiple of the {size} processes that they are split over (tp_size)"
            )
    if OLD:
        _check_old(config, size)


def _check_old(config: PretrainedConfig, size: int) -> None:
    """Raise LoadError for what transformers 5.17 would compute wrongly.

    It adds up what experts give while their weights are DTensors, which `unwrap` makes plain. It splits an LM head in equal parts, and no
    embeddings: a head that is the embeddings is whole in every process, and its logits are joined all the same.
    """
    unsplit = {
        "experts": any("experts" in name for name in config.base_model_tp_plan or ()),
        "embeddings, which are its LM head,": getattr(config, "tie_word_embeddings", False),
        f"vocabulary of {config.vocab_size} tokens": config.vocab_size % size,
    }
    if what := next((name for name, there in unsplit.items() if there), None):
        raise LoadError(
            f"transformers {__version__} cannot split the {what} of {config.model_type} over {size} processes (tp_size): install 5.23"
        )


def reader_of_part(config: PretrainedConfig, processes: DeviceMesh) -> Callable[..., Any]:
    """The `from_pretrained` that gives this process its part of a model of this kind. Raises LoadError as `check_split` does.

    transformers would set up processes by itself: all that there are, and on whatever accelerator it finds. Its class has a method for
    that, which is another one here.
    """
    check_split(config, processes.size())
    with torch.device("meta"):
        whole = type(AutoModelForCausalLM.from_config(config))
    given = processes if OLD else _Meshes(processes)

    def prepare(
        _: type, asked: DistributedConfig, *, device_map: object = None, device_mesh: object = None
    ) -> tuple[object, object, DeviceMesh | _Meshes]:
        return asked, device_map, given

    own = {"prepare_distribute_model": classmethod(prepare), "__module__": whole.__module__}
    part: Any = type(whole.__name__, (whole,), own)
    return partial(part.from_pretrained, distributed_config=DistributedConfig(tp_size=processes.size()))


@dataclass(frozen=True)
class _Meshes:
    """What transformers asks for the processes along some dimensions of parallelism (a TransformersDeviceMesh): there is one."""

    processes: DeviceMesh

    def get_mesh(self, _: object) -> DeviceMesh:
        return self.processes


def unwrap(model: PreTrainedModel) -> PreTrainedModel:
    """The model, whose layers hold their parts as plain tensors: transformers would take each out of its DTensor in every forward.

    Embeddings stay DTensors, since transformers looks rows of them up as such.
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            continue
        for name, parameter in list(module.named_parameters(recurse=False)):
            if isinstance(parameter.data, DTensor):
                module.register_parameter(name, nn.Parameter(parameter.data.to_local(), requires_grad=False))
    return model


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of the weights that this process has. What several layers share counts once."""
    own = (each.data.to_local() if isinstance(each.data, DTensor) else each.data for each in model.parameters())
    return sum({each.data_ptr(): each.nbytes for each in own}.values())
