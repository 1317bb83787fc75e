"""The long text of the checks at load is longer than what a config may mean by a length; what it is not longer than is told."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import LlamaConfig, PretrainedConfig

from specsplit.model.lm.probe_texts import LONGEST, long_text, untried

WIDTHS = {
    "hidden_size": 640,
    "intermediate_size": 900,
    "head_dim": 320,
    "q_lora_rank": 512,
    "rope_theta": 1000.0,
    "image_token_id": 777,
}


def config(**more: Any) -> PretrainedConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 500,
        "num_attention_heads": 2,
        "max_position_embeddings": 8192,
        "num_hidden_layers": 40,
    }
    return LlamaConfig(**{**sizes, **WIDTHS, **more})


@pytest.mark.parametrize(
    ("named", "longer_than"),
    [
        ({}, 40),
        ({"anything": 256}, 256),
        ({"hidden_size": 200}, 200),
        ({"log_n_length": 700}, 700),
        ({"attention_chunk_size": LONGEST}, LONGEST),
        ({"windows": [300, {"local": 512.0}]}, 512),
        ({"log_n_length": 700, "max_position_embeddings": 600}, 40),
        ({"log_n_length": LONGEST + 1}, 40),
    ],
)
def test_the_long_text_is_longer_than_every_number_that_may_be_a_length(
    named: dict[str, Any], longer_than: int
) -> None:
    facts = config(**named)
    text = long_text(facts, 500, facts.max_position_embeddings, most=10_000)
    assert text.prefix == longer_than + 1


def test_it_is_no_longer_than_the_pool_or_the_context() -> None:
    assert long_text(config(log_n_length=700), 500, 8192, most=300).length == 300
    assert long_text(config(log_n_length=700), 500, 702, most=10_000).length == 702


def test_lengths_that_no_text_is_longer_than_are_told_by_name() -> None:
    assert untried(config(log_n_length=700), 8192) == {}
    named = config(log_n_length=700, floor_scale=8191, nested={"windows": [64, 4096]}, whole_context=8192)
    found = untried(named, 8192)
    assert found == {"floor_scale": 8191, "windows": 4096}
