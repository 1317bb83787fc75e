"""Modules that a GPU runs in the place of transformers' own, by triton's interpreter: the same numbers, or they are not there."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen3Config, Qwen3MoeConfig

from specsplit.model import CausalLM
from specsplit.model.attention.triton.attention import TritonAttention
from specsplit.model.layers.capture import decoder_layers
from specsplit.model.layers.gpu import gpu_kit, is_fused
from specsplit.model.layers.replacing import replace_layers
from specsplit.model.layers.weights import first_difference, held_tensors
from specsplit.model.lm.compiled import compile_unfused
from specsplit.model.lm.probe import tree_logits
from specsplit.model.lm.replaced import use_gpu_layers
from tests.model.altered import attention_in, clip_queries, logits_and_states, override, scale_far_positions
from tests.model.conftest import CONFIGS
from tests.support.kernels import CPU, interpreted
from tests.support.rounding import assert_same_sums

from specsplit.model.attention.interface import Place  # isort: skip
from specsplit.model.layers.gpu.kit import fused_kit  # isort: skip
from specsplit.model.layers.kernels.elementwise import gated, rms_norm, rotate  # isort: skip

pytestmark = interpreted
Saved = Callable[[PretrainedConfig], Path]


def stands_for(root: nn.Module) -> Counter[str]:
    """What of the modules below `root` is fused, each counted by itself."""
    return Counter(type(each).__name__ for each in root.modules() if type(each).__name__.startswith("Fused"))


def loaded(folder: Path, attention: str = "torch", dtype: str = "float32") -> tuple[CausalLM, Tensor]:
    """A model as it is, and what it gives."""
    lm = CausalLM.load(folder, num_pages=64, page_size=4, cpu_layers=False, backend="torch", dtype=dtype)
    if attention == "triton":
        lm.backend = TritonAttention(lm.kv, 4, processors_of_device=2)  # pyright: ignore[reportAttributeAccessIssue]
    return lm, tree_logits(lm)


@pytest.mark.parametrize("attention", ["torch", "triton"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_layer_of_a_known_architecture_is_fused_and_gives_the_same_numbers(
    folders: dict[str, Path], kind: str, attention: str
) -> None:
    """By torch keys and values are handed to attention; by triton the rotation writes them to their pages."""
    lm, trees = loaded(folders[kind], attention)
    expected = logits_and_states(lm)
    use_gpu_layers(lm, trees, fused_kit())
    found = stands_for(lm.model)
    assert found["FusedLayer"] == found["FusedAttention"] == found["FusedMlp"] == 3 and is_fused(lm.model)
    logits, states = logits_and_states(lm)
    assert_same_sums(logits, expected[0])
    for layer, found_states in states.items():
        assert_same_sums(found_states, expected[1][layer])


def test_norms_of_heads_and_biases_are_part_of_the_kernels(
    saved: Saved, tiny_config: Callable[..., dict[str, Any]]
) -> None:
    for config in (Qwen3Config(**tiny_config(head_dim=8)), LlamaConfig(**tiny_config(attention_bias=True))):
        torch.manual_seed(5)
        folder = saved(config)
        model: Any = AutoModelForCausalLM.from_pretrained(folder)
        for name, each in model.named_parameters():
            if name.endswith("bias") or "_norm" in name:
                each.data.normal_()
        model.save_pretrained(folder)
        lm, trees = loaded(folder, "triton")
        use_gpu_layers(lm, trees, fused_kit())
        assert stands_for(lm.model)["FusedLayer"] == 3


def test_what_is_not_known_stays_and_what_is_beside_it_is_fused(
    saved: Saved, tiny_config: Callable[..., dict[str, Any]]
) -> None:
    folder = saved(
        Qwen3MoeConfig(**tiny_config(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8))
    )
    lm, trees = loaded(folder)
    use_gpu_layers(lm, trees, fused_kit())
    found = stands_for(lm.model)
    assert (found["FusedAttention"], found["FusedLayer"], found["FusedMlp"]) == (3, 0, 0)


def leave_the_residual_out(model: Any) -> None:
    override(model.model.layers[0], lambda own, hidden_states, **told: own(hidden_states, **told) - hidden_states)


@pytest.mark.parametrize("change", [clip_queries, scale_far_positions, leave_the_residual_out])
def test_what_does_something_else_than_its_parts_say_stays(folders: dict[str, Path], change: Any) -> None:
    lm, _ = loaded(folders["llama"])
    change(lm.model)
    replace_layers(lm.model, fused_kit())
    layers: Any = decoder_layers(lm.model)
    assert layers is not None and type(layers[0]).__name__ != "FusedLayer"
    assert (type(attention_in(lm.model)).__name__ == "FusedAttention") == (change is leave_the_residual_out)
    assert type(layers[1]).__name__ == "FusedLayer"


def test_on_a_cpu_nothing_is_fused(folders: dict[str, Path]) -> None:
    assert gpu_kit(CPU) is None
    lm = CausalLM.load(folders["llama"], num_pages=32, page_size=4, cpu_layers=False, gpu_layers=True)
    assert not stands_for(lm.model)


def test_other_weights_go_to_the_same_tensors(folders: dict[str, Path]) -> None:
    models = [loaded(folders["llama"])[0].model for _ in range(2)]
    for model in models:
        replace_layers(model, fused_kit())
    assert first_difference(*map(held_tensors, models)) == ""


def test_layers_of_which_nothing_is_fused_are_compiled_if_they_give_the_same(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    lm, trees = loaded(folders["llama"])
    assert compile_unfused(lm, lambda graph, _: graph)
    assert_same_sums(tree_logits(lm), trees)
    assert not compile_unfused(lm, lambda graph, _: graph), "they are compiled already"

    def broken(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        raise RuntimeError("no compiler")

    def wrong(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        return lambda *inputs: tuple(
            3 * each if torch.is_tensor(each) and each.is_floating_point() else each for each in graph(*inputs)
        )

    caplog.set_level(logging.WARNING)
    for backend, why in ((broken, "no compiler"), (wrong, "its logits are off by")):
        torch.compiler.reset()
        lm, trees = loaded(folders["llama"])
        caplog.clear()
        assert not compile_unfused(lm, backend)
        assert why in caplog.text
        assert torch.equal(tree_logits(lm), trees), "the layers run as they did"
    use_gpu_layers(lm, trees, fused_kit())
    assert not compile_unfused(lm, broken)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("width", [20, 1024, 1500])
def test_numbers_are_rounded_where_torch_rounds_them(dtype: torch.dtype, width: int) -> None:
    chance = torch.Generator().manual_seed(1)
    rows, added, weight = (
        (torch.randn(*shape, generator=chance) * 3).to(dtype) for shape in ((5, width), (5, width), (width,))
    )
    total = rows + added
    scaled = total.float() * (total.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    found, kept = rms_norm(rows, weight, 1e-5, added)
    assert torch.equal(kept, total)
    near: dict[str, Any] = {"rtol": 2e-3, "atol": 1e-3} if dtype == torch.float16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found, weight * scaled.to(dtype), **near)
    both = torch.cat([rows, added], dim=1)
    torch.testing.assert_close(gated(both), torch.nn.functional.silu(rows) * added, **near)


def test_rows_that_are_none_launch_nothing() -> None:
    empty, weight = torch.zeros(1, 0, 8), torch.ones(8)
    assert rms_norm(empty, weight, 1e-5)[0].shape == gated(torch.zeros(1, 0, 16)).shape == (1, 0, 8)
    place = Place(torch.zeros(3, 1, 4), torch.zeros(3, 1, 4), torch.zeros(0, dtype=torch.int64))
    turned = rotate(torch.zeros(0, 12), torch.zeros(0, 4), torch.zeros(0, 4), (1, 1), place, None)
    assert turned.shape == (0, 1, 4) and not place.keys.any()
