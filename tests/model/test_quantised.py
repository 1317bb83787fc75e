"""Quantised targets, as transformers loads them: served if the checks at load hold, refused with what is missing otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    DeepseekV3Config,
    LlamaConfig,
    PreTrainedModel,
    TorchAoConfig,
)

from specsplit.errors import LoadError
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.heads.target import TargetEmbeddings

Tiny = Callable[..., dict[str, Any]]
Quantise = Callable[[str, Tensor], dict[str, Tensor]]
_BLOCK = 16


def eight_bits(dtype: torch.dtype, largest: float) -> Quantise:
    """One scale for each row of a weight."""

    def quantise(name: str, weight: Tensor) -> dict[str, Tensor]:
        scale = weight.abs().amax(1, keepdim=True) / largest
        scaled = weight / scale
        return {
            name: (scaled if dtype.is_floating_point else scaled.round()).to(dtype),
            f"{name}_scale": scale,
        }

    return quantise


def blocks(name: str, weight: Tensor) -> dict[str, Tensor]:
    """One scale for each square of a weight, as DeepSeek publishes its own."""
    rows, columns = weight.shape
    squares = weight.reshape(rows // _BLOCK, _BLOCK, columns // _BLOCK, _BLOCK)
    scale = squares.abs().amax((1, 3)) / 448
    quantised = (squares / scale[:, None, :, None]).reshape(weight.shape)
    return {name: quantised.to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}


def packed(name: str, weight: Tensor) -> dict[str, Tensor]:
    """Eight numbers of 4 bits, from -8 on, in each integer of 32, the first in the lowest bits; one scale for each row."""
    scale = weight.abs().amax(1, keepdim=True) / 7
    numbers = (weight / scale).round().to(torch.int32) + 8
    places = numbers.reshape(len(weight), -1, 8) << (4 * torch.arange(8, dtype=torch.int32))
    return {
        f"{name}_packed": places.sum(-1).to(torch.int32),
        f"{name}_scale": scale,
        f"{name}_shape": torch.tensor(weight.shape),
    }


def compressed(form: str, kind: str, bits: int = 8) -> dict[str, Any]:
    """The quantization_config of llm-compressor: weights by row, activations, where they have 8 bits, by token."""
    common = {"num_bits": bits, "type": kind, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**common, "strategy": "channel", "dynamic": False},
        "input_activations": {**common, "strategy": "token", "dynamic": True} if bits == 8 else None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


FP8 = {"quant_method": "fp8", "weight_block_size": [_BLOCK, _BLOCK], "activation_scheme": "dynamic", "fmt": "e4m3"}
ROUNDING = {"float32": 0.1, "bfloat16": 0.2}
"""By how much two forwards may differ: where activations are rounded too, a last bit chooses between two numbers.

    On one processor that made 0.028 in float32; a scale that is wrong makes 1 and more.
    """
FORMS: dict[str, tuple[Quantise, dict[str, Any]]] = {
    "compressed-tensors, float": (eight_bits(torch.float8_e4m3fn, 448), compressed("float-quantized", "float")),
    "compressed-tensors, int": (eight_bits(torch.int8, 127), compressed("int-quantized", "int")),
    "compressed-tensors, packed": (packed, compressed("pack-quantized", "int", bits=4)),
    "fp8 in blocks": (blocks, FP8),
}


def quantised(folder: Path, quantise: Quantise, config: dict[str, Any] | None) -> None:
    """Quantise the projections that a folder holds, and have its config say so, or nothing."""
    file = folder / "model.safetensors"
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(file).items():
        tensors |= quantise(name, tensor) if "layers" in name and "proj" in name else {name: tensor}
    save_file(tensors, file, {"format": "pt"})
    if config is None:
        return
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**facts, "quantization_config": config}))


def plain(folder: Path, tiny: dict[str, Any], dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(20)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(LlamaConfig(**tiny)).to(dtype).eval()
    model.save_pretrained(folder)
    return model


def load(folder: Path, **options: Any) -> CausalLM:
    return CausalLM.load(folder, num_pages=64, page_size=4, **options)


@torch.inference_mode()
def apart(lm: CausalLM, own: PreTrainedModel) -> float:
    """By how much the two differ in the logits of a text, as a share of the largest."""
    ids = [(37 * index + 5) % 89 for index in range(40)]
    table = PageTable(lm.pool)
    table.reserve(len(ids))
    ours = lm.forward([Row.chunk(ids, table.upto(len(ids)), range(len(ids)))]).float()
    theirs = own(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_a_quantised_target_gives_what_transformers_gives(
    tmp_path: Path, tiny_config: Tiny, name: str, dtype: str
) -> None:
    if name == "fp8 in blocks":
        pytest.importorskip("accelerate")
    exact = plain(tmp_path, tiny_config(), getattr(torch, dtype))
    quantised(tmp_path, *FORMS[name])
    lm = load(tmp_path, dtype=dtype)
    assert apart(lm, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()) < ROUNDING[dtype]
    assert apart(lm, exact) > 0.001, "it is quantised"


def test_heads_that_are_made_by_quantised_weights_are_absorbed(tmp_path: Path, tiny_config: Tiny) -> None:
    widths: dict[str, Any] = {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
    }
    dense = tiny_config(num_key_value_heads=4, first_k_dense_replace=3, n_group=1, topk_group=1)
    torch.manual_seed(20)
    AutoModelForCausalLM.from_config(DeepseekV3Config(**dense, **widths)).save_pretrained(tmp_path)
    quantised(tmp_path, *FORMS["compressed-tensors, packed"])
    lm = load(tmp_path)
    assert all(layer.values_in_keys for layer in lm.kv.geometry.layers)
    assert apart(lm, AutoModelForCausalLM.from_pretrained(tmp_path).eval()) < 1e-4


def test_weights_that_are_not_quantised_have_one_type(tmp_path: Path, tiny_config: Tiny) -> None:
    pytest.importorskip("accelerate")
    plain(tmp_path, tiny_config(), torch.bfloat16)
    quantised(tmp_path, *FORMS["fp8 in blocks"])
    with pytest.raises(LoadError, match="leaves what is not quantised in it as bfloat16: set dtype = bfloat16"):
        load(tmp_path, dtype="float32")
    assert load(tmp_path, dtype="auto").model.dtype == torch.bfloat16


def test_a_target_of_torchao_gives_what_transformers_gives(tmp_path: Path, tiny_config: Tiny) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    exact = plain(tmp_path, tiny_config())
    config = TorchAoConfig(torchao.Int8WeightOnlyConfig())
    AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config).save_pretrained(tmp_path)
    lm = load(tmp_path)
    assert apart(lm, AutoModelForCausalLM.from_pretrained(tmp_path).eval()) < 1e-4
    assert apart(lm, exact) > 0.001, "it is quantised"


def test_the_text_model_in_a_quantised_multimodal_folder_is_served(tmp_path: Path, tiny_config: Tiny) -> None:
    """What its config names is named as in the whole."""
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    text = {"model_type": "llama", **tiny_config()}
    config = AutoConfig.for_model("llava", text_config=text, vision_config=vision)
    torch.manual_seed(20)
    exact = AutoModelForImageTextToText.from_config(config).eval()
    exact.save_pretrained(tmp_path)
    quantise, said = FORMS["compressed-tensors, int"]
    kept = "language_model.model.layers.1.mlp.up_proj"
    said = {**said, "ignore": ["language_model.lm_head", "re:.*vision_tower.*", kept]}
    quantised(
        tmp_path,
        lambda name, weight: {name: weight} if "vision" in name or kept in name else quantise(name, weight),
        said,
    )
    assert 0.001 < apart(load(tmp_path), exact) < 0.6


@pytest.mark.parametrize(
    ("config", "package"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 16}, "optimum"),
        ({"quant_method": "awq", "bits": 4, "group_size": 16}, "gptqmodel"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "fbgemm_fp8"}, "requires a GPU"),
        ({"quant_method": "nobody's"}, "nobody's"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_what_is_missing(
    tmp_path: Path, tiny_config: Tiny, config: dict[str, Any], package: str
) -> None:
    if package.isidentifier() and find_spec(package) is not None:
        pytest.skip(f"{package} is there")
    plain(tmp_path, tiny_config())
    quantised(tmp_path, lambda name, weight: {name: weight}, config)
    with pytest.raises(LoadError, match=f"(cannot be loaded: .*|weights are quantised by .*){package}"):
        load(tmp_path)


def test_quantised_weights_of_which_the_config_says_nothing_are_refused(tmp_path: Path, tiny_config: Tiny) -> None:
    """transformers would read them without their scales."""
    plain(tmp_path, tiny_config())
    quantised(tmp_path, eight_bits(torch.int8, 127), None)
    with pytest.raises(
        LoadError, match=r"21 tensors of quantised weights.* model\.layers\.0\.mlp\.down_proj\.weight_scale first"
    ):
        load(tmp_path)


def test_a_head_shares_an_lm_head_that_has_scales_as_the_numbers_it_stands_for(
    tmp_path: Path, tiny_config: Tiny
) -> None:
    exact = plain(tmp_path, tiny_config())
    quantised(tmp_path, *FORMS["compressed-tensors, float"])
    assert TargetEmbeddings.load(tmp_path).num_layers == 3
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    whole = exact.get_parameter("lm_head.weight").detach()
    stored = eight_bits(torch.float8_e4m3fn, 448)("lm_head.weight", whole)
    save_file({**tensors, **stored}, file, {"format": "pt"})
    shared = TargetEmbeddings.load(tmp_path).lm_head
    assert shared is not None
    assert torch.equal(shared.weight, stored["lm_head.weight"].float() * stored["lm_head.weight_scale"])
    assert (shared.weight - whole).abs().max() < 0.07 * whole.abs().max()
    save_file({**tensors, "lm_head.weight": stored["lm_head.weight"]}, file, {"format": "pt"})
    with pytest.raises(LoadError, match=r"lm_head\.weight is quantised \(torch\.float8_e4m3fn\) and lacks its scales"):
        TargetEmbeddings.load(tmp_path)
