"""An inflated model is deeper and says the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, PretrainedConfig

from specsplit.errors import LoadError
from specsplit.model import CausalLM, PageTable, Row


def logits(lm: CausalLM) -> torch.Tensor:
    table = PageTable(lm.pool)
    table.reserve(20)
    lm.forward([Row.chunk(range(5, 15), table.upto(10))])
    result = lm.forward([Row.tree([3, 1, 4, 1, 5], [-1, 0, 0, 1, 2], table.upto(15))])
    table.release()
    return result


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_an_inflated_model_gives_the_same_logits_from_more_layers(folders: dict[str, Path], kind: str) -> None:
    plain = CausalLM.load(folders[kind], num_pages=16, page_size=4)
    deep = CausalLM.load(folders[kind], num_pages=16, page_size=4, inflate_layers=8)
    assert deep.kv.data.shape[0] == deep.model.config.num_hidden_layers == 8
    assert torch.equal(logits(deep), logits(plain))


def test_a_model_cannot_be_inflated_to_fewer_layers(folders: dict[str, Path]) -> None:
    with pytest.raises(LoadError, match="inflate_layers is 2, but the model has 3 layers"):
        CausalLM.load(folders["llama"], num_pages=16, page_size=4, inflate_layers=2)


def test_a_model_without_the_usual_projections_cannot_be_inflated(
    saved: Callable[[PretrainedConfig], Path], tiny_config: Callable[..., dict[str, Any]]
) -> None:
    folder = saved(GPT2Config(**tiny_config()))
    with pytest.raises(LoadError, match="no o_proj and down_proj"):
        CausalLM.load(folder, num_pages=16, page_size=4, inflate_layers=8)
