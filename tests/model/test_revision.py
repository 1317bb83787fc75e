"""Weights of another revision take the place of those that are served, in whatever the model was made of, or are refused."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedModel

from specsplit.errors import Incompatible, LoadError, SpecsplitError
from specsplit.model.layers.weights import copy_tensors, first_difference, held_tensors
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.lm.probe import apart, tree_logits
from specsplit.model.lm.revision import Revision, check_config
from specsplit.model_thread import SITE, BuildingSite
from tests.support.toys import random_target

PAGES: dict[str, Any] = {"num_pages": 16, "page_size": 16}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two revisions of one model."""
    root = tmp_path_factory.mktemp("weights")
    return random_target(root / "first"), random_target(root / "second", seed=1)


@pytest.fixture
def second(folders: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the second, to be changed."""
    return Path(shutil.copytree(folders[1], tmp_path / "second"))


@pytest.mark.parametrize("cpu_layers", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_of_a_model_takes_other_weights(folders: tuple[Path, Path], dtype: str, cpu_layers: bool) -> None:
    first, second = folders
    options: dict[str, Any] = {**PAGES, "dtype": dtype, "cpu_layers": cpu_layers}
    served, other = CausalLM.load(first, **options), CausalLM.load(second, **options)
    places = {name: tensor.data_ptr() for name, tensor in held_tensors(served.model).items() if not tensor.is_mkldnn}
    assert apart(tree_logits(served), tree_logits(other)) > 0.2
    Revision("second", other, served).copy_into(served)
    assert apart(tree_logits(served), tree_logits(other)) < 1e-6
    assert places == {
        name: tensor.data_ptr() for name, tensor in held_tensors(served.model).items() if not tensor.is_mkldnn
    }, "what knows where weights lie, as graphs do, finds them there"


def test_what_is_made_of_latents_is_made_anew(tmp_path: Path) -> None:
    config = DeepseekV3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1,
        max_position_embeddings=256, initializer_range=0.2, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    lms: list[CausalLM] = []
    for seed, name in enumerate(("first", "second")):
        torch.manual_seed(seed)
        model: PreTrainedModel = DeepseekV3ForCausalLM(config)
        model.save_pretrained(tmp_path / name)
        lms.append(CausalLM.load(tmp_path / name, **PAGES))
    served, other = lms
    assert any("LatentAttention" in name for name in held_tensors(served.model))
    Revision("second", other, served).copy_into(served)
    assert apart(tree_logits(served), tree_logits(other)) < 1e-6


def test_a_model_that_is_neither_the_one_nor_the_other_is_told(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = folders
    served, other = CausalLM.load(first, **PAGES), CausalLM.load(second, **PAGES)

    def half(source: dict[str, torch.Tensor], target: dict[str, torch.Tensor]) -> None:
        copy_tensors(source, dict(list(target.items())[: len(target) // 2]))

    monkeypatch.setattr("specsplit.model.lm.revision.copy_tensors", half)
    with pytest.raises(SpecsplitError, match="neither the one nor the other"):
        Revision("second", other, served).copy_into(served)


def edited(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, expected 2"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05, expected 1e-06"),
        ({"vocab_size": 17}, "vocab_size is 17, expected 16"),
    ],
)
def test_a_folder_of_another_model_is_refused_with_the_first_difference(
    folders: tuple[Path, Path], second: Path, changes: dict[str, Any], said: str
) -> None:
    served = CausalLM.load(folders[0], **PAGES)
    edited(second, **changes)
    with pytest.raises(Incompatible, match=said):
        check_config(served, second)


def test_other_numbers_of_a_config_do_not_make_another_model(folders: tuple[Path, Path], second: Path) -> None:
    edited(second, transformers_version="4.0.0", torch_dtype="bfloat16")
    check_config(CausalLM.load(folders[0], **PAGES), second)


def test_other_ends_are_refused(folders: tuple[Path, Path], second: Path) -> None:
    served = CausalLM.load(folders[0], **PAGES)
    path = second / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": 3}))
    with pytest.raises(Incompatible, match=r"generation_config.json: eos_token_id is \[3\], expected \[\]"):
        Revision("second", CausalLM.load(second, **PAGES), served)


def test_weights_of_another_shape_than_the_config_says_cannot_be_read(second: Path) -> None:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(second)
    tensors = model.state_dict()
    tensors["lm_head.weight"] = torch.zeros(17, 32)
    model.save_pretrained(second, state_dict=tensors)
    with pytest.raises(LoadError):
        CausalLM.load(second, **PAGES)


def test_tensors_of_another_name_shape_or_type_are_told_apart() -> None:
    one = {"a": torch.zeros(2, 3)}
    assert first_difference(one, {"a": torch.ones(2, 3)}) == ""
    assert (
        first_difference(one, {"a": torch.ones(3, 2)}) == "a is [3, 2] float32 on cpu, expected [2, 3] float32 on cpu"
    )
    assert first_difference(one, {"a": torch.ones(2, 3).half()}).startswith("a is [2, 3] float16 on cpu")
    assert first_difference(one, {}) == "it has no a"
    assert first_difference({}, one) == "it has a, which is not served"


def test_modules_are_built_while_nobody_steps_and_weights_are_read_while_others_do(folders: tuple[Path, Path]) -> None:
    loading = threading.Thread(target=CausalLM.load, args=(folders[0],), kwargs=PAGES)
    with SITE.stepping:
        loading.start()
        loading.join(0.5)
        assert loading.is_alive(), "transformers changes torch's default type for a moment"
    loading.join(60)
    assert not loading.is_alive()


def test_steps_are_beside_each_other_and_builders_are_alone() -> None:
    site, seen = BuildingSite(), threading.Event()

    def build() -> None:
        with site.building():
            seen.set()

    builder = threading.Thread(target=build)
    with site.stepping, site.stepping:
        builder.start()
        assert not seen.wait(0.05)
    assert seen.wait(10)
    builder.join(10)
