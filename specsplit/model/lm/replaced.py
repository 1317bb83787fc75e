"""A model whose modules are replaced by faster ones, and gives the same logits still."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from torch import Tensor

from specsplit.model.layers.cpu import CPU, PackedEmbedding, packed
from specsplit.model.layers.gpu import gpu_kit
from specsplit.model.layers.kit import Kit
from specsplit.model.layers.replacing import replace_layers
from specsplit.model.lm.probe import probe_adapters, probe_replaced

if TYPE_CHECKING:
    from specsplit.model.lm.causal_lm import CausalLM

_log = logging.getLogger(__name__)


def use_layers(lm: CausalLM, trees: Tensor, *, on_cpu: bool, on_gpu: bool) -> None:
    """Check the adapters of a model, and put faster modules in the place of its own where they give the same numbers.

    trees: `tree_logits` of the model as it is. Raises LoadError if rows with adapters do not give what each gives alone.
    """
    adapted = probe_adapters(lm)
    if on_cpu:
        use_cpu_layers(lm, trees, adapted)
    if on_gpu:
        use_gpu_layers(lm, trees, adapted=adapted)


def use_cpu_layers(lm: CausalLM, trees: Tensor, adapted: Tensor | None = None) -> None:
    """Replace modules. Raises LoadError if the model then gives other logits than `trees`, which its own gave in `tree_logits`, or than
    `adapted`, of `adapted_logits`.

    Ranks that share its MLPs, and run together or not at all, are not asked.
    """
    lm.adapters.fuse(lm.model)
    replace_layers(lm.model, CPU)
    embeddings, output = lm.model.get_input_embeddings(), lm.model.get_output_embeddings()
    if output is not None:
        lm.model.set_output_embeddings(found := packed(output))
        if (rows := PackedEmbedding.like(embeddings, output, found)) is not None:
            lm.model.set_input_embeddings(rows)
    lm.adapters.pack(lm.model)
    if not len(lm.blocks):
        probe_replaced(lm, trees, adapted=adapted)


def use_gpu_layers(lm: CausalLM, trees: Tensor, kit: Kit | None = None, adapted: Tensor | None = None) -> None:
    """Replace modules where there are kernels for the device. `kit` stands for what those are.

    Raises LoadError if the model then gives other logits than `trees`, which its own gave in `tree_logits`, or than `adapted`, of
    `adapted_logits`. Ranks that share its MLPs, and run together or not at all, are not asked.

    With adapters modules stay, since fused ones read the weights of the layers that these add to, and kernels add what adapters add.
    """
    kit = kit or gpu_kit(lm.device)
    if kit is None:
        return
    if lm.adapters:
        lm.adapters.stack()
        probe_replaced(lm, trees, "GPU", adapted)
        return
    count = replace_layers(lm.model, kit)
    _log.info("%d modules of %s are replaced by fused ones (gpu_layers)", count, type(lm.model).__name__)
    if count and not len(lm.blocks):
        probe_replaced(lm, trees, "GPU")
