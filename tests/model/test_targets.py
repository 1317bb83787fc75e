"""docs/targets.md, and a sample of the walk that it is printed from: `make targets` walks all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, __version__

from scripts.targets.__main__ import NAMES
from scripts.targets.page import PAGE, listed, moved, page
from scripts.targets.settings import OWN
from scripts.targets.walk import TOLERANCE, Finding, Outcome, apart, largest_error, walk
from specsplit.model import CausalLM
from tests.model.conftest import Saved

SAMPLE = (
    "bert",  # the bias of its LM head is tied to another
    "deepseek_v3",  # values of another width, out of latents
    "doge",  # refused: changes its mask itself
    "gemma2",  # soft caps
    "gemma4_text",  # layers of several shapes
    "gpt2",  # positions that are learnt
    "gpt_bigcode",  # one KV head
    "gpt_oss",  # sinks, experts
    "llama4_text",  # chunks
    "mamba",  # states that one token at a time goes on from
    "mistral",  # windows
    "qwen3_5",  # a config inside of another
    "roberta",  # counts positions otherwise
)
PINNED = f"\ntransformers=={__version__}\n" in Path("constraints.txt").read_text()


@pytest.fixture(scope="module")
def lists() -> dict[str, str]:
    return listed(PAGE.read_text())


@pytest.mark.skipif(not PINNED, reason=f"docs/targets.md lists the models of another transformers than {__version__}")
def test_every_causal_language_model_of_transformers_is_on_the_page(lists: dict[str, str]) -> None:
    assert sorted(lists) == NAMES
    assert set(OWN) <= set(NAMES)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_kind_of_model_does_what_the_page_says(name: str, lists: dict[str, str]) -> None:
    found = walk(name)
    assert not moved({name: lists[name]}, listed(page([found], 16))), found


def test_a_target_that_is_not_the_model_that_it_is_compared_with_is_found_out(saved: Saved) -> None:
    def compared(folder: Path, other: Path) -> float:
        own = AutoModelForCausalLM.from_pretrained(other, attn_implementation="eager").eval()
        return largest_error(CausalLM.load(folder, num_pages=64, page_size=4), own)

    sizes: dict[str, Any] = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "initializer_range": 0.3}
    heads: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    folder, narrower, other = (
        saved(MistralConfig(**sizes, **heads, sliding_window=20)),
        saved(MistralConfig(**sizes, **heads, sliding_window=19)),
        saved(LlamaConfig(**sizes, **heads), seed=1),
    )
    assert compared(folder, folder) <= TOLERANCE
    assert compared(folder, narrower) > 100 * TOLERANCE
    assert compared(folder, other) > 1000 * TOLERANCE


def test_how_far_logits_are_apart_is_told_by_row_and_without_what_is_never_said() -> None:
    own = torch.tensor([[1.0, -2.0, -torch.inf], [40.0, 0.0, -torch.inf]])
    assert apart(own, own) == 0
    assert apart(own + torch.tensor([[0.0, 0.5, 0.0], [4.0, 0.0, 0.0]]), own) == 0.25
    assert not apart(torch.where(own.isinf(), 0.0, own), own) <= 1
    assert not apart(own * torch.nan, own) <= 1


def test_the_page_says_who_is_where_and_what_has_moved() -> None:
    findings = [
        Finding("one", Outcome.SERVED, "all tokens", 2e-6),
        Finding("two-a", Outcome.REFUSED, "it has | and <class 'x'> in it"),
        Finding("three", Outcome.UNBUILT, "long " * 100),
    ]
    before = listed(page(findings, 16))
    assert before == {"one": "Served exactly", "two-a": "Refused", "three": "Not built small"}
    now = listed(page([Finding("two-a", Outcome.SERVED, "windows"), *findings[2:]], 16))
    assert moved(before, now) == [
        "one: Served exactly in docs/targets.md, now not listed",
        "two-a: Refused in docs/targets.md, now Served exactly",
    ]
    assert moved(before, before) == []
