"""Saving of a head to a folder, in a layout that other engines read too."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specsplit.model.heads.eagle3 import Eagle3Head
from specsplit.model.heads.head import Head
from specsplit.model.heads.head_module import HeadModule
from specsplit.model.heads.layouts import Layout, eagle3_layout, eagle_layout, mtp_layout
from specsplit.model.heads.mtp import MtpHead
from specsplit.mtp.families import DEEPSEEK, MIMO
from specsplit.mtp.family import MtpFamily


def save_head(head: Head, folder: Path, *, dtype: torch.dtype | None = None) -> None:
    """Write config.json and model.safetensors without the target's tensors. `load_head` reads them back.

    dtype: the dtype that the numbers are rounded to; None leaves them as they are.

    EAGLE and EAGLE-3 heads are written as SpecForge does, MTP layers as MiMo or DeepSeek does, whichever the head computes like. Raises
    ValueError for a head that computes like neither, or that reads hidden states which the layout cannot name.
    """
    _write(folder, _facts(head, dtype or head.dtype), published_tensors(head, _layout(head)), dtype)


def _write(folder: Path, facts: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if dtype is not None:
        tensors = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def published_tensors(head: HeadModule, layout: Layout) -> dict[str, Tensor]:
    """The head's own tensors by their published names."""
    return {
        published: part.detach().cpu().contiguous()
        for name, tensor in head.own_tensors().items()
        for published, part in layout.pieces(name, tensor)
    }


def _layout(head: Head) -> Layout:
    if isinstance(head, Eagle3Head):
        return eagle3_layout(["midlayer."], len(head.layers))
    if not isinstance(head, MtpHead):
        return eagle_layout([])
    family = _mtp_family(head)
    first = head.target.num_layers if family.behind_target else 0
    return mtp_layout(family, range(first, first + head.shape.num_steps))


def _mtp_family(head: MtpHead) -> MtpFamily:
    """The family that publishes heads which compute like this one. Raises ValueError if neither does."""
    for family in (MIMO, DEEPSEEK):
        normed = family.formula.normed_states or head.shape.recurrent
        if head.formula in (family.formula, replace(family.formula, normed_states=normed)):
            return family
    raise ValueError(
        "an MTP head is published with the embedding first and plain states (DeepSeek), or neither (MiMo); states are normed "
        "wherever they are fed back to the same layer"
    )


def _facts(head: Head, dtype: torch.dtype) -> dict[str, Any]:
    facts = head.config.to_dict()
    own: dict[str, Any] = {
        "vocab_size": head.shape.vocabulary.size,
        "max_position_embeddings": head.shape.max_context,
        "architectures": [f"LlamaForCausalLM{'Eagle3' if isinstance(head, Eagle3Head) else 'Eagle'}"],
        "dtype": str(dtype).removeprefix("torch."),
    }
    if isinstance(head, MtpHead):
        own |= {"num_nextn_predict_layers": head.shape.num_steps, "num_hidden_layers": head.target.num_layers}
        own["architectures"] = ["DeepseekV3ForCausalLMNextN" if head.formula.embedding_first else "MiMoMTP"]
    if isinstance(head, Eagle3Head):
        layers = head.shape.need.layers
        if min(layers) < 0:
            raise ValueError(
                f"an EAGLE-3 head on hidden states {list(layers)} cannot be saved: expected numbers of layers"
            )
        own |= {
            "draft_vocab_size": None if head.d2t is None else len(head.d2t),
            "target_hidden_size": head.shape.need.hidden_size,
            **{name: said for name, said in asdict(head.variant).items() if name != "mask_token"},
            "mask_token_id": head.variant.mask_token,
            "eagle_config": {
                "use_aux_hidden_state": True,
                "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in layers],
            },
        }
    return {**facts, **own}
