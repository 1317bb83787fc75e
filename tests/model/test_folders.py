"""Folders as people have them: multimodal ones, shards, ties, ends, types of weights and scaled rope."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from specsplit.errors import LoadError
from specsplit.features import LAST
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.heads.target import TargetEmbeddings
from specsplit.model.lm.text_part import check_inside
from specsplit.text.tokenizer import Tokenizer
from tests.model.conftest import POCKET
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
    "qwen3_5": (
        "qwen3_5",
        {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
        {"vision_config": _QWEN_VISION},
    ),
    "kimi_k25": (
        "kimi_k25",
        {
            **_EXPERTS,
            "model_type": "deepseek_v3",
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 6,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "head_dim": 4,
        },
        {"vision_config": _VISION},
    ),
    "smolvlm": ("smolvlm", {"model_type": "llama"}, {"vision_config": _VISION}),
    "qwen3_vl_moe": (
        "qwen3_vl_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        {"vision_config": {**_QWEN_VISION, "deepstack_visual_indexes": [0]}},
    ),
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
def own_logits(own: PreTrainedModel, tokens: int) -> Tensor:
    """What a model itself says of a text -> [tokens, V]."""
    return own(input_ids=torch.tensor([some_text(tokens)]), use_cache=False).logits[0].float()


def some_text(tokens: int) -> list[int]:
    return [(37 * index + 5) % 89 for index in range(tokens)]


def assert_serves(lm: CausalLM, own: PreTrainedModel, tokens: int = 40) -> None:
    """A text read in two chunks gives the logits that the model itself gives for all of it."""
    ids, half = some_text(tokens), tokens // 2
    table, ours = PageTable(lm.pool), list[Tensor]()
    table.reserve(tokens)
    for end in (half, tokens):
        row = Row.chunk(ids[end - half : end], table.upto(end), range(half))
        ours.append(lm.forward([row]))
        lm.keep_states([(row, half - 1)])
    assert_same_sums(torch.cat(ours), own_logits(own, tokens))


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
    with pytest.raises(LoadError, match="gemma3_text has tokens see those behind them"):
        load(tmp_path)


def test_a_text_model_that_the_whole_runs_otherwise_is_refused(tmp_path: Path, tiny_config: Tiny) -> None:
    """Its logits are scaled by the whole."""
    model = multimodal(tmp_path, tiny_config(), "llava")
    lm = load(tmp_path, cpu_layers=False)
    check_inside(lm.model, model.config)
    lm.model.register_forward_hook(lambda _, __, output: CausalLMOutputWithPast(logits=2 * output.logits))
    with pytest.raises(
        LoadError, match=r"the text model of LlavaForConditionalGeneration by itself gives other logits"
    ):
        check_inside(lm.model, model.config)


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


def plain(folder: Path, config: PretrainedConfig) -> PreTrainedModel:
    """Save a causal language model with random weights."""
    torch.manual_seed(20)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    return model


def edit(path: Path, *without: str, **changes: Any) -> None:
    """Change what a JSON file says."""
    facts = {name: value for name, value in json.loads(path.read_text()).items() if name not in without}
    path.write_text(json.dumps({**facts, **changes}))


@pytest.mark.parametrize("generation", [None, {}, {"temperature": 0.6}, {"eos_token_id": [2, 7]}])
def test_what_ends_a_text_is_said_by_either_config(
    tmp_path: Path, tiny_config: Tiny, generation: dict[str, Any] | None
) -> None:
    plain(tmp_path, LlamaConfig(**tiny_config(eos_token_id=[2, 7])))
    said = tmp_path / "generation_config.json"
    said.unlink() if generation is None else said.write_text(json.dumps(generation))
    if generation and "eos_token_id" in generation:
        edit(tmp_path / "config.json", eos_token_id=2)
    assert load(tmp_path).info.eos_token_ids == (2, 7)


@pytest.mark.parametrize("outer", [{"eos_token_id": [2, 7]}, {}])
def test_the_end_of_a_multimodal_folder_is_the_outer_configs_or_else_the_inner_ones(
    tmp_path: Path, tiny_config: Tiny, outer: dict[str, Any]
) -> None:
    multimodal(tmp_path, tiny_config(), "gemma3")
    (tmp_path / "generation_config.json").unlink()
    edit(tmp_path / "config.json", *({"eos_token_id"} - set(outer)), **outer)
    assert load(tmp_path).info.eos_token_ids == ((2, 7) if outer else (2,))


def test_tied_heads_need_no_lm_head_and_one_that_differs_is_its_own(tmp_path: Path, tiny_config: Tiny) -> None:
    own = plain(tmp_path, LlamaConfig(**tiny_config(tie_word_embeddings=True)))
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    assert "lm_head.weight" not in tensors
    assert_serves(load(tmp_path), own)
    other = torch.randn(97, 32)
    save_file({**tensors, "lm_head.weight": other}, file, {"format": "pt"})
    lm, ends = load(tmp_path), TargetEmbeddings.load(tmp_path)
    assert_serves(lm, AutoModelForCausalLM.from_pretrained(tmp_path).eval())
    assert ends.lm_head is not None and torch.equal(ends.lm_head.weight, other)


@pytest.mark.parametrize("index", [True, False])
def test_shards_are_read_with_an_index_and_without(tmp_path: Path, tiny_config: Tiny, index: bool) -> None:
    own = plain(tmp_path, LlamaConfig(**tiny_config()))
    (tmp_path / "model.safetensors").unlink()
    own.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    if not index:
        (tmp_path / "model.safetensors.index.json").unlink()
    assert_serves(load(tmp_path), own)
    assert TargetEmbeddings.load(tmp_path).num_layers == 3


def test_shards_of_which_one_is_missing_are_refused_by_name(tmp_path: Path, tiny_config: Tiny) -> None:
    own = plain(tmp_path, LlamaConfig(**tiny_config()))
    (tmp_path / "model.safetensors").unlink()
    own.save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / "model.safetensors.index.json").unlink()
    count = len(list(tmp_path.glob("model-*")))
    (tmp_path / f"model-00002-of-{count:05}.safetensors").unlink()
    for read in (load, TargetEmbeddings.load):
        with pytest.raises(
            LoadError, match=rf"has {count - 1} shards of {count} \(model-00001-of-.*expected all of one set"
        ):
            read(tmp_path)


@pytest.mark.parametrize(("key", "said"), [("dtype", "bfloat16"), ("torch_dtype", "bfloat16"), ("dtype", "float32")])
@pytest.mark.parametrize("where", ["plain", "outer", "inner"])
def test_the_type_of_weights_is_found_by_either_name(
    tmp_path: Path, tiny_config: Tiny, key: str, said: str, where: str
) -> None:
    config = tmp_path / "config.json"
    if where == "plain":
        plain(tmp_path, LlamaConfig(**tiny_config()))
        edit(config, "dtype", **{key: said})
    else:
        multimodal(tmp_path, tiny_config(), "llava")
        inner = {
            name: value for name, value in json.loads(config.read_text())["text_config"].items() if name != "dtype"
        }
        edit(config, "dtype", text_config={**inner, **({key: said} if where == "inner" else {})})
        if where == "outer":
            edit(config, **{key: said})
    assert load(tmp_path, dtype="auto").model.dtype == getattr(torch, said)


def test_tokens_that_the_tokenizer_does_not_have_are_the_models_all_the_same(tmp_path: Path, tiny_config: Tiny) -> None:
    shutil.copytree(POCKET, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").unlink()
    own = plain(tmp_path, LlamaConfig(**tiny_config(vocab_size=2100)))
    lm, tokenizer = load(tmp_path), Tokenizer.load(tmp_path)
    assert lm.info.vocabulary == tokenizer.vocabulary and tokenizer.vocabulary.size == 2100
    assert_serves(lm, own)
    assert tokenizer.decode([2048, 2099]) == "" and tokenizer.piece(2099) == "<2099>"


ROPE: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn with everything": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}


def turned(folder: Path, key: str, rope: dict[str, Any]) -> PreTrainedModel:
    """Have a folder's config scale its rope, as it is written now or (rope_scaling, type) as it was before; the model by transformers."""
    config, theta = folder / "config.json", {"rope_theta": 10000.0}
    if key == "rope_parameters":
        edit(config, "rope_scaling", rope_parameters={**theta, **rope})
    else:
        older = {"type" if name == "rope_type" else name: value for name, value in rope.items()}
        edit(config, "rope_parameters", rope_scaling=older, **theta)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("name", ROPE)
def test_scaled_rope_is_served_in_either_form(tmp_path: Path, tiny_config: Tiny, name: str) -> None:
    unscaled = own_logits(plain(tmp_path, LlamaConfig(**tiny_config())), 200)
    for key in ("rope_parameters", "rope_scaling"):
        own = turned(tmp_path, key, ROPE[name])
        assert_serves(load(tmp_path), own, tokens=200)
        assert (own_logits(own, 200) - unscaled).abs().max() > 0.1 * unscaled.abs().max(), "it is scaled"


@pytest.mark.parametrize("kind", ["phi", "glm", "gpt_neox", "phi3"])
def test_rope_that_turns_a_part_of_a_head_is_served(tmp_path: Path, tiny_config: Tiny, kind: str) -> None:
    config = AutoConfig.for_model(kind, **tiny_config(pad_token_id=0, head_dim=8), partial_rotary_factor=0.5)
    own = plain(tmp_path, config)
    assert own.config.rope_parameters["partial_rotary_factor"] < 1
    assert_serves(load(tmp_path), own, tokens=200)
