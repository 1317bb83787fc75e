"""Positions that are learnt, in models that count them by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoConfig, PretrainedConfig

from specsplit.errors import LoadError
from specsplit.model import CausalLM, PageTable, Row
from tests.model.conftest import Saved
from tests.support.rounding import assert_same_sums

Tiny = Callable[..., dict[str, Any]]


def counting(tiny: Tiny) -> PretrainedConfig:
    """One that counts from behind its padding token on where it is not told: row 2 of its 60 is the first."""
    return AutoConfig.for_model("roberta", **tiny(max_position_embeddings=60, pad_token_id=1), is_decoder=True)


def test_a_context_that_its_positions_do_not_suffice_for_is_refused_with_the_one_that_they_do(
    saved: Saved, tiny_config: Tiny
) -> None:
    folder = saved(counting(tiny_config))
    with pytest.raises(LoadError, match=r"it has 60 positions, and the first .* number 2 .*: set max_context = 58"):
        CausalLM.load(folder, num_pages=64, page_size=4)
    assert CausalLM.load(folder, num_pages=64, page_size=4, max_context=58).info.max_context == 58


@pytest.mark.parametrize("kind", ["gpt2", "bart", "roberta"])
def test_a_token_has_the_position_of_its_row_whatever_stands_before_it_in_a_batch(
    kind: str, saved: Saved, tiny_config: Tiny
) -> None:
    sizes = {"d_model": 32, "decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "n_head": 4}
    config = counting(tiny_config) if kind == "roberta" else AutoConfig.for_model(kind, **tiny_config(**sizes))
    lm = CausalLM.load(saved(config), num_pages=64, page_size=4, max_context=40)
    tables = [PageTable(lm.pool) for _ in range(2)]
    for table in tables:
        table.reserve(9)
    first, second = (
        Row.chunk(text, table.upto(9), [8]) for text, table in zip(([7] * 9, [*range(20, 29)]), tables, strict=True)
    )
    alone = lm.forward([second])
    assert_same_sums(lm.forward([first, second])[1:], alone)
