"""What of config.json is told to gateways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specsplit.engine import ModelConfig
from specsplit.errors import LoadError
from specsplit.text.model_config import model_config


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ModelConfig()),
        (
            {"model_type": "llama", "architectures": ["A", "B"], "bos_token_id": 1, "pad_token_id": 2},
            ModelConfig("llama", ("A", "B"), 1, 2),
        ),
        ({"bos_token_id": None, "pad_token_id": -1, "architectures": None, "model_type": None}, ModelConfig()),
        ({"bos_token_id": [1, 2], "pad_token_id": "x", "architectures": "A"}, ModelConfig()),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "bos_token_id": 5}},
            ModelConfig("gemma3", (), 5),
        ),
    ],
)
def test_what_is_there_is_read_and_the_rest_takes_its_default(
    tmp_path: Path, config: dict[str, object], expected: ModelConfig
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_config(tmp_path) == expected


def test_a_config_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"config\.json does not exist"):
        model_config(tmp_path)
