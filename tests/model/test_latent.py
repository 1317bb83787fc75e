"""Latent attention over latents: the numbers that heads give, a fraction of the memory, and heads wherever that does not hold."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, DeepseekV3Config, PreTrainedModel

from scripts.targets.walk import TOLERANCE, largest_error
from specsplit.model import CausalLM, Geometry, KVCache
from specsplit.model.attention.interface import NAME
from specsplit.model.attention.latent import LatentAttention
from specsplit.model.pages.geometry import Layer
from tests.model.conftest import Saved
from tests.support.rounding import APART_ONCE, assert_same_sums

Tiny = Callable[..., dict[str, Any]]
CPU = torch.device("cpu")
WIDTHS: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}


class Heads(nn.Module):
    """Makes heads of latents as transformers' modules do."""

    def __init__(self, heads: int, rank: int, inner: int, value: int) -> None:
        super().__init__()
        self.config: Any = SimpleNamespace(_attn_implementation=NAME)
        self.kv_b_proj = nn.Linear(rank, heads * (inner + value), bias=False)
        self.widths = inner, value

    def expand_kv(self, latent: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """[1, 1, T, rank] and [1, 1, T, P] -> [1, heads, T, inner + P] and [1, heads, T, value]"""
        made = self.kv_b_proj(latent)[0].unflatten(-1, (-1, sum(self.widths))).transpose(1, 2)
        inner, value = made.split(self.widths, dim=-1)
        return torch.cat((inner, shared.expand(-1, inner.shape[1], -1, -1)), dim=-1), value


class Causal:
    """A forward of one text (a ForwardBatch), in 64 bits."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        return scaled_dot_product_attention(
            query.double(), key.double(), value.double(), is_causal=True, scale=scaling, enable_gqa=True
        ).transpose(1, 2)


@given(
    st.integers(1, 5), st.integers(1, 12), st.integers(1, 9), st.integers(1, 6), st.integers(1, 9), st.integers(1, 7), st.data()
)  # fmt: skip
@torch.inference_mode()
def test_queries_and_outputs_that_absorb_what_heads_are_made_by_give_what_heads_give(
    heads: int, rank: int, inner: int, shared: int, value: int, count: int, data: st.DataObject
) -> None:
    torch.manual_seed(data.draw(st.integers(0, 99)))
    module = Heads(heads, rank, inner, value).double()
    latents, rotated = (torch.randn(1, 1, count, width, dtype=torch.float64) for width in (rank, shared))
    query = torch.randn(1, heads, count, inner + shared, dtype=torch.float64)
    scaling = data.draw(st.sampled_from([None, 0.4]))
    standing = LatentAttention(module)
    key, values = module.expand_kv(latents, rotated)
    expected = Causal().attend(0, query, key, values, scaling, {})
    standing.absorb()
    key, values = module.expand_kv(latents, rotated)
    assert key.shape == (1, 1, count, rank + shared) and values.shape == (1, 1, count, rank)
    found = standing.attend(Causal(), 0, query, key, values, scaling, {})
    assert_same_sums(found[0].float(), expected[0].float(), APART_ONCE)


@torch.inference_mode()
def test_what_runs_its_own_attention_has_heads_and_so_has_what_is_left() -> None:
    module = Heads(3, 5, 4, 2)
    given_to = torch.randn(1, 1, 6, 5), torch.randn(1, 1, 6, 2)
    expected = module.expand_kv(*given_to)
    standing = LatentAttention(module)
    module.expand_kv(*given_to)
    standing.absorb()
    module.config._attn_implementation = "eager"
    assert all(map(torch.equal, module.expand_kv(*given_to), expected))
    module.config._attn_implementation = NAME
    assert module.expand_kv(*given_to)[0].shape == (1, 1, 6, 7)
    standing.leave()
    assert all(map(torch.equal, module.expand_kv(*given_to), expected))


def config_of(tiny: dict[str, Any]) -> DeepseekV3Config:
    """DeepSeek-V3 of dense layers."""
    return DeepseekV3Config(**tiny, **WIDTHS, first_k_dense_replace=3, n_group=1, topk_group=1)


@pytest.fixture(scope="module")
def folder(saved: Saved, tiny_config: Tiny) -> Path:
    return saved(config_of(tiny_config(num_key_value_heads=4)))


def load(folder: Path, **options: Any) -> CausalLM:
    return CausalLM.load(folder, **{"num_pages": 64, "page_size": 4, **options})


@pytest.mark.parametrize("keeps", [True, False])
def test_a_token_takes_what_is_kept_of_it_and_all_numbers_are_the_models_own(
    folder: Path, caplog: pytest.LogCaptureFixture, keeps: bool
) -> None:
    with caplog.at_level(logging.INFO, logger="specsplit"):
        lm = load(folder, latent_cache=keeps)
    latents, heads = 16 + 4, 4 * (8 + 4 + 6)
    assert lm.kv.nbytes == 4 * lm.kv.num_slots * 3 * (latents if keeps else heads)
    said = f"DeepseekV3ForCausalLM keeps latents: {3 * latents} numbers of a token, in the place of {3 * heads} of its heads"
    assert [record.getMessage() for record in caplog.records if "latents" in record.getMessage()] == [said] * keeps
    own = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    assert largest_error(lm, own) <= TOLERANCE


def test_latents_that_are_kept_in_8_bits_are_read_as_numbers_again(folder: Path) -> None:
    lm = load(folder, kv_cache_dtype="fp8_e4m3")
    assert lm.kv.nbytes == lm.kv.num_slots * 3 * (16 + 4)
    own = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    assert 0.001 < largest_error(lm, own) < 0.5


def changed(folder: Path, change: Callable[[Any], None]) -> PreTrainedModel:
    """The model with something changed in every one of its attention modules."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=NAME)
    for layer in model.model.layers:
        change(layer.self_attn)
    return model


def add_a_bias(module: Any) -> None:
    bias = torch.ones(module.kv_b_proj.out_features)
    module.kv_b_proj.bias = nn.Parameter(bias, requires_grad=False)


def bend(module: Any) -> None:
    """By so little that a look at the heads does not tell, and the logits do."""
    straight = module.expand_kv
    module.expand_kv = lambda latent, shared: straight(latent + 0.03 * latent.abs(), shared)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (add_a_bias, "DeepseekV3Attention makes heads of latents in some other way"),
        (bend, "DeepseekV3ForCausalLM gives other logits in a packed token tree"),
    ],
)
def test_where_latents_give_other_numbers_heads_are_kept_and_the_log_says_why(
    folder: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Any], None], why: str
) -> None:
    model = changed(folder, change)
    with caplog.at_level(logging.WARNING, logger="specsplit"):
        lm = CausalLM(model, load(folder, latent_cache=False).info, num_pages=64, page_size=4)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        f"DeepseekV3ForCausalLM keeps keys and values of all heads: with latents in their place, {why}"
    )
    assert lm.kv.geometry.numbers == 3 * 4 * (8 + 4 + 6) and not any(
        layer.values_in_keys for layer in lm.kv.geometry.layers
    )


@pytest.mark.slow
def test_compiled_layers_attend_to_latents_too(folder: Path) -> None:
    lm = load(folder, cpu_layers=False)
    lm.compile_layers(lambda module, _: module)
    assert (
        largest_error(lm, AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()) <= TOLERANCE
    )


def test_values_that_lie_in_keys_are_kept_once_and_move_with_them() -> None:
    apart, within = Layer(4, 2, 5, 3), Layer(4, 1, 5, 3, values_in_keys=True)
    kv = KVCache(Geometry((apart, within, apart, within)), 8, torch.float32, CPU)
    assert kv.nbytes == 4 * 8 * 2 * (2 * (5 + 3) + 5) == 4 * 8 * kv.geometry.numbers
    slots, written = torch.tensor([6, 1]), [torch.randn(2, layer.kv_heads, 5) for layer in kv.geometry.layers]
    for number, key in enumerate(written):
        kv.write(number, slots, key, key[..., :3])
    kv.move(slots, torch.tensor([2, 3]))
    for number, key in enumerate(written):
        expected = [key, key[..., :3]]
        for at in (torch.tensor([2, 3]), slice(2, 4)):
            assert all(map(torch.equal, kv.read(number, at), expected))
        seen = (views[number][0].transpose(0, 1) for views in kv.heads_first(slice(2, 4)))
        assert all(map(torch.equal, seen, expected))
    with pytest.raises(ValueError, match="there is no one tensor of them"):
        _ = kv.data


def test_latents_alone_are_one_tensor() -> None:
    kv = KVCache(Geometry((Layer(4, 1, 5, 3, values_in_keys=True),) * 2), 8, torch.float32, CPU)
    assert kv.data.shape == (2, 1, 8, 1, 5)
    key = torch.randn(1, 1, 5)
    kv.write(1, torch.tensor([7]), key, key[..., :3])
    assert np.flatnonzero(kv.data.abs().sum(dim=(1, 3, 4)).reshape(-1)).tolist() == [15]
    assert kv.read(1, slice(7, 8))[1].data_ptr() == kv.data[1, 0, 7].data_ptr()
