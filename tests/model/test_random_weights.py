"""A target of random weights, for what steps cost: it needs no weights on disk, and is the same every time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from specsplit.errors import LoadError
from specsplit.model import CausalLM


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with a config.json and nothing else."""
    LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=64,
        max_position_embeddings=64,
        dtype="bfloat16",
    ).save_pretrained(tmp_path)
    return tmp_path


def test_random_weights_are_the_same_every_time_and_leave_the_process_its_own_chance(folder: Path) -> None:
    before = torch.random.get_rng_state()
    one, other = (
        CausalLM.load(folder, num_pages=4, page_size=16, random_weights=True, cpu_layers=False) for _ in range(2)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = list(zip(one.model.parameters(), other.model.parameters(), strict=True))
    assert pairs and all(torch.equal(*pair) for pair in pairs)
    assert all(weights.std() > 0 for name, weights in one.model.named_parameters() if name.endswith("proj.weight"))


@pytest.mark.parametrize(("asked", "found"), [("auto", torch.bfloat16), ("float32", torch.float32)])
def test_random_weights_have_the_type_that_is_asked_for(folder: Path, asked: str, found: torch.dtype) -> None:
    lm = CausalLM.load(folder, num_pages=4, page_size=16, random_weights=True, dtype=asked)
    assert {each.dtype for each in lm.model.parameters()} == {found}


def test_without_the_setting_a_folder_without_weights_is_refused(folder: Path) -> None:
    with pytest.raises(LoadError, match="cannot be loaded"):
        CausalLM.load(folder, num_pages=4, page_size=16)
