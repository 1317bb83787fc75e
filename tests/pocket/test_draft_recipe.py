from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from scripts.pocket import continuations
from scripts.pocket.draft import divergence
from scripts.pocket.measure import held_out_windows
from scripts.pocket.target import config

CORPUS = np.arange(600, dtype=np.uint16)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> LlamaForCausalLM:
    monkeypatch.setattr(continuations, "ROWS", 2)
    monkeypatch.setattr(continuations, "PROMPT", 4)
    monkeypatch.setattr(continuations, "NEW", 3)
    torch.manual_seed(0)
    return LlamaForCausalLM(config(0, hidden=16, layers=1, heads=2, kv_heads=1, mlp=32)).eval()


def test_an_interrupted_generation_of_continuations_ends_as_an_unbroken_one(
    tiny: LlamaForCausalLM, tmp_path: Path
) -> None:
    whole = continuations.generate(tiny, "a", CORPUS, tmp_path / "whole.pt", batches=4)
    continuations.generate(tiny, "a", CORPUS, tmp_path / "broken.pt", batches=2)
    resumed = continuations.generate(tiny, "a", CORPUS, tmp_path / "broken.pt", batches=4)
    assert whole.sequences.shape == (8, 7)
    assert torch.equal(whole.sequences, resumed.sequences)


def test_continuations_of_another_target_are_not_gone_on_with(tiny: LlamaForCausalLM, tmp_path: Path) -> None:
    file = tmp_path / "continuations.pt"
    continuations.generate(tiny, "a", CORPUS, file, batches=2)
    other = LlamaForCausalLM(config(0, hidden=16, layers=1, heads=2, kv_heads=1, mlp=32)).eval()
    again = continuations.generate(other, "b", CORPUS, file, batches=2)
    assert torch.equal(
        again.sequences, continuations.generate(other, "b", CORPUS, tmp_path / "new.pt", batches=2).sequences
    )


def test_greedy_continuations_are_those_of_generate(tiny: LlamaForCausalLM) -> None:
    prompts = torch.arange(10).view(2, 5)
    wanted = tiny.generate(  # pyright: ignore[reportAttributeAccessIssue]
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=6,
        min_new_tokens=6,
        do_sample=False,
        eos_token_id=None,
    )
    assert torch.equal(continuations.extend(tiny, prompts, 6, temperature=0.0, seed=0), wanted)


def test_a_draft_that_is_its_target_diverges_by_nothing(tiny: LlamaForCausalLM) -> None:
    tokens = torch.arange(12).view(2, 6)
    torch.manual_seed(1)
    other = LlamaForCausalLM(config(0, hidden=16, layers=1, heads=2, kv_heads=1, mlp=32))
    assert divergence(tiny, tiny, tokens).item() == pytest.approx(0.0, abs=1e-6)
    assert divergence(tiny, other, tokens).item() > 0


def test_held_out_windows_are_spread_over_the_corpus_and_do_not_overlap() -> None:
    windows = held_out_windows(CORPUS, width=10, limit=4)
    assert windows[:, 0].tolist() == [0, 190, 390, 590]
    assert len(held_out_windows(CORPUS, width=100, limit=50)) == 6
