"""Folders as people have them: the text model inside a multimodal one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from specsplit.errors import LoadError
from specsplit.features import LAST
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.heads.target import TargetEmbeddings
from tests.support.rounding import assert_same_sums

Tiny = Callable[..., dict[str, Any]]
_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_channels": 3,
    "image_size": 28,
    "patch_size": 14,
}
_QWEN_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 32,
}
_EXPERTS: dict[str, Any] = {
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
_WINDOWS = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
MULTIMODAL: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma3": ("gemma3", _WINDOWS, {"vision_config": _VISION, "mm_tokens_per_image": 4}),
    "gemma4": (
        "gemma4",
        {
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "vocab_size_per_layer_input": 97,
            "hidden_size_per_layer_input": 8,
        },
        {"vision_config": {**_VISION, "head_dim": 8, "num_key_value_heads": 2}, "audio_config": None},
    ),
    "mistral3": ("mistral3", {"model_type": "mistral"}, {"vision_config": {**_VISION, "head_dim": 8}}),
    "ministral3": ("mistral3", {"model_type": "ministral3"}, {"vision_config": {**_VISION, "head_dim": 8}}),
    "llama4": (
        "llama4",
        {**_EXPERTS, "attention_chunk_size": 16, "intermediate_size_mlp": 48},
        {
            "vision_config": {
                **_VISION,
                "vision_output_dim": 16,
                "projector_input_dim": 16,
                "projector_output_dim": 16,
            }
        },
    ),
    "llava": (
        "llava",
        {"model_type": "llama"},
        {"vision_config": {**_VISION, "model_type": "clip_vision_model"}},
    ),
    "step3p7": (
        "step3p7",
        {**_EXPERTS, **_WINDOWS, "share_expert_dim": 16, "mlp_layer_types": ["dense", "sparse", "sparse"]},
        {"vision_config": _VISION},
    ),
    "qwen3_vl": ("qwen3_vl", {}, {"vision_config": {**_QWEN_VISION, "deepstack_visual_indexes": [0]}}),
    "qwen2_5_vl": (
        "qwen2_5_vl",
        {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}},
        {"vision_config": _QWEN_VISION},
    ),
}
"""Tiny multimodal models: the architecture, what is special of its text model, and what else it is made of."""


def multimodal(folder: Path, tiny: dict[str, Any], name: str) -> PreTrainedModel:
    """Save a multimodal model with random weights in the names that people publish it with."""
    kind, text, others = MULTIMODAL[name]
    config = AutoConfig.for_model(kind, text_config={**tiny, "pad_token_id": 0, "head_dim": 8, **text}, **others)
    torch.manual_seed(20)
    model = AutoModelForImageTextToText.from_config(config).eval()
    model.save_pretrained(folder)
    return model


def load(folder: Path, **options: Any) -> CausalLM:
    return CausalLM.load(folder, **{"num_pages": 64, "page_size": 4, **options})


@torch.inference_mode()
def assert_serves(lm: CausalLM, own: PreTrainedModel, tokens: int = 40) -> None:
    """A text read in two chunks gives the logits that the model itself gives for all of it."""
    ids = [(37 * index + 5) % 89 for index in range(tokens)]
    table = PageTable(lm.pool)
    table.reserve(tokens)
    half = tokens // 2
    ours = torch.cat(
        [lm.forward([Row.chunk(ids[end - half : end], table.upto(end), range(half))]) for end in (half, tokens)]
    )
    assert_same_sums(ours, own(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float())


def renamed(folder: Path, change: Callable[[str], str]) -> None:
    """Give the weights of a folder other names."""
    file = folder / "model.safetensors"
    save_file({change(name): tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})


@pytest.mark.parametrize("name", MULTIMODAL)
def test_the_text_model_in_a_multimodal_folder_is_served(tmp_path: Path, tiny_config: Tiny, name: str) -> None:
    own = multimodal(tmp_path, tiny_config(), name)
    lm = load(tmp_path)
    assert lm.info.eos_token_ids == (2,) and lm.info.max_context == 512
    assert not [part for part, _ in lm.model.named_modules() if "vision" in part or "visual" in part]
    lm.capture.check((0, 3, LAST))
    assert_serves(lm, own)


@pytest.mark.parametrize("name", ["gemma3", "mistral3", "llava"])
def test_newer_names_of_the_weights_in_a_multimodal_folder_are_read_too(
    tmp_path: Path, tiny_config: Tiny, name: str
) -> None:
    own = multimodal(tmp_path, tiny_config(), name)
    renamed(
        tmp_path,
        lambda old: old.replace("language_model.lm_head", "lm_head").replace(
            "language_model.model.", "model.language_model."
        ),
    )
    assert_serves(load(tmp_path), own)


def test_a_text_model_that_transformers_has_only_inside_another_is_served_by_itself(
    tmp_path: Path, tiny_config: Tiny
) -> None:
    """Step-3.5's folders have the config of the text model alone."""
    own = multimodal(tmp_path, tiny_config(), "step3p7")
    own.config.get_text_config().save_pretrained(tmp_path)
    assert_serves(load(tmp_path), own)


def test_a_text_model_that_is_refused_is_refused_for_its_layers(tmp_path: Path, tiny_config: Tiny) -> None:
    mask = {"text_config": {**tiny_config(pad_token_id=0, head_dim=8), "use_bidirectional_attention": True}}
    config = AutoConfig.for_model("gemma3", **mask, vision_config=_VISION, mm_tokens_per_image=4)
    AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(LoadError, match="layer 0 sees other tokens than those before its own"):
        load(tmp_path)


def test_a_multimodal_folder_that_lacks_weights_of_its_text_model_is_refused(tmp_path: Path, tiny_config: Tiny) -> None:
    multimodal(tmp_path, tiny_config(), "llava")
    renamed(tmp_path, lambda old: old.replace("layers.2.mlp", "layers.7.mlp"))
    with pytest.raises(LoadError, match=r"lacks 3 of the weights its config.json asks for, model\.layers\.2\.mlp"):
        load(tmp_path)


def test_a_text_model_taken_out_of_the_whole_is_drawn_at_random_too(tmp_path: Path, tiny_config: Tiny) -> None:
    multimodal(tmp_path, tiny_config(), "qwen3_vl")
    (tmp_path / "model.safetensors").unlink()
    assert load(tmp_path, random_weights=True).info.vocabulary.size == 97


@pytest.mark.parametrize("name", ["llava", "mistral3", "step3p7"])
def test_a_head_reads_the_embeddings_of_the_text_model_in_a_multimodal_folder(
    tmp_path: Path, tiny_config: Tiny, name: str
) -> None:
    own = multimodal(tmp_path, tiny_config(), name)
    ends = TargetEmbeddings.load(tmp_path)
    assert (ends.hidden_size, ends.num_layers, ends.max_context) == (32, 3, 512)
    assert ends.lm_head is not None
    embeddings, lm_head = own.get_input_embeddings(), own.get_output_embeddings()
    assert isinstance(embeddings, nn.Embedding) and isinstance(lm_head, nn.Linear)
    assert torch.equal(ends.embeddings, embeddings.weight)
    assert torch.equal(ends.lm_head.weight, lm_head.weight)
