"""What all of these heads have in common: their size, their weights, and how they are written."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.attention import create_float_mask
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import Tensor
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

VOCAB: Final = 64
DRAFT_VOCAB: Final = 24
HIDDEN: Final = 16
_SHAPE: Final = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 256,
}


def llama(**options: Any) -> PretrainedConfig:
    """The config of the decoder layers of a head, of Llama's kind."""
    return LlamaConfig(**{**_SHAPE, **options})


def qwen3(**options: Any) -> PretrainedConfig:
    """The config of decoder layers that norm queries and keys."""
    return Qwen3Config(**{**_SHAPE, **options})


def built(model: Any, config: Any, layer: PretrainedConfig, options: dict[str, Any], tokens: int) -> Any:
    """A model that attends in float32. `tokens`: how many it says that it proposes."""
    layer._attn_implementation = "eager"  # pyright: ignore[reportPrivateUsage]
    made = model(
        config(
            transformer_layer_config=layer,
            **options,
            speculators_config=SpeculatorsConfig(
                algorithm=config.model_fields["speculators_model_type"].default,
                proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=tokens)],
                default_proposal_method="greedy",
                verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
            ),
        )
    )
    made._create_mask_fn = partial(create_float_mask, dtype=torch.float32)
    return made


def filled(model: Any) -> Any:
    """Fill a model with weights that bfloat16 has, so large that every token of the context matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            noise = 0.3 * torch.randn_like(parameter)
            parameter.copy_((1 + noise if parameter.ndim == 1 else noise).bfloat16())
        if model.d2t is not None:
            ids = (torch.arange(DRAFT_VOCAB) * 5 + 2).remainder(VOCAB).sort().values
            model.d2t.copy_(ids - torch.arange(DRAFT_VOCAB))
            model.t2d.zero_().index_fill_(0, ids, True)
    return model.float().eval()


def inputs(model: Any, length: int) -> dict[str, Tensor]:
    """Tokens [length], and features [length, states x HIDDEN]."""
    return {"tokens": torch.randint(0, VOCAB, (length,)), "features": torch.randn(length, model.fc.in_features)}


def save(folder: Path, model: Any, record: dict[str, Tensor]) -> None:
    """Write a model as the library saves it, and what there is to compare with."""
    model.bfloat16().save_pretrained(folder)
    for path in folder.glob("*.py"):  # the library's own code, which a reader of the checkpoint has
        path.unlink()
    save_file(record, folder / "record.safetensors")
