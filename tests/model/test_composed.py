"""A rank group of split models: what the whole gives, a part of a part of the weights, and nobody hangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, PretrainedConfig, Qwen3MoeConfig

from specsplit.model import CausalLM
from tests.model.composed_work import BUCKETS, IN_TWO, SPLIT, alone, bytes_of, dying, failing, kv_of, served, steps
from tests.model.conftest import splits_all
from tests.model.split_work import PAGES, refused
from tests.support.ranks import run_ranks
from tests.support.rounding import assert_same_sums
from tests.support.slow import slowly

Tiny = Callable[..., dict[str, Any]]
Saved = Callable[[PretrainedConfig], Path]
SHARES = [[[0, 1, 2], [3]], [[], [4, 5]]]
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
KINDS: dict[str, Callable[[dict[str, Any]], PretrainedConfig]] = {
    "llama with biases": lambda tiny: LlamaConfig(**tiny, mlp_bias=True, attention_bias=True),
    "qwen3_moe": lambda tiny: Qwen3MoeConfig(**tiny, **_EXPERTS),
}


@pytest.fixture(scope="module")
def llama_folder(saved: Saved, split_config: Tiny) -> Path:
    return saved(LlamaConfig(**split_config()))


@pytest.mark.parametrize("kind", [pytest.param("qwen3_moe", marks=splits_all), *slowly("llama with biases")])
def test_ranks_of_two_processes_that_are_busy_and_idle_get_what_the_whole_gives_eagerly_and_captured(
    saved: Saved, split_config: Tiny, kind: str
) -> None:
    folder = saved(KINDS[kind](split_config()))
    processes = run_ranks(4, served, folder, SHARES, kind=IN_TWO)
    for rank in range(2):
        whole = CausalLM.load(folder, num_pages=PAGES, page_size=4, cpu_layers=False)
        of_mlps, of_attention = bytes_of(whole)
        check_steps(whole, [share[rank] for share in SHARES], processes[SPLIT * rank][0])
        heads = kv_of(whole).chunk(SPLIT, dim=3)
        for (_, kv, held, *_), expected in zip(processes[SPLIT * rank : SPLIT * rank + SPLIT], heads, strict=True):
            assert_same_sums(torch.from_numpy(kv), expected)
            assert held == (of_mlps / 4, of_attention / 2)
    (*_, captures, replayed), *others = processes
    assert captures == len(BUCKETS) and len(replayed) == 2 * (3 + 1)
    assert [(each[-2], each[-1]) for each in others] == [(captures, replayed)] * 3, "all replay the same"


def test_an_mlp_whose_part_cannot_be_shared_out_is_refused_by_all_processes(saved: Saved, split_config: Tiny) -> None:
    said = run_ranks(4, refused, saved(LlamaConfig(**split_config(intermediate_size=50))), -1, kind=IN_TWO)
    for each in said:
        assert "its intermediate width of 25 is no multiple of the 2 ranks (dp_size)" in each, said


def check_steps(whole: CausalLM, shares: Sequence[Sequence[int]], made: Sequence[Sequence[Any]]) -> None:
    """Each share is run twice, over pages of its own: eagerly and captured."""
    for numbers, ours in zip([each for share in shares for each in (share, share)], made, strict=True):
        for found, expected in zip(ours, steps(whole, partial(alone, whole), numbers), strict=True):
            assert_same_sums(torch.from_numpy(found), expected)


@pytest.mark.parametrize(("victim", "when"), [(1, "in a turn"), (2, "in a turn"), (3, "between turns")])
def test_a_dead_process_of_any_rank_is_named_by_all_others(llama_folder: Path, victim: int, when: str) -> None:
    said = run_ranks(4, dying, llama_folder, victim, 0.0, when, dead=[victim], kind=IN_TWO)
    for number, each in enumerate(said):
        assert number == victim or each.startswith(f"rank {victim} of 4 is lost, or did not take part within 20 s"), (
            each
        )


@pytest.mark.slow
def test_a_follower_of_an_idle_rank_that_hangs_in_a_turn_is_named_after_the_timeout(llama_folder: Path) -> None:
    *said, _ = run_ranks(4, dying, llama_folder, 3, 12.0, "in a turn", timeout_s=5.0, dead=[3], kind=IN_TWO)
    for each in said:
        assert each.startswith("rank 3 of 4 is lost, or did not take part within 5 s"), each


@pytest.mark.parametrize(("victim", "where"), [(0, "attention"), (1, "attention"), (3, "its part of an MLP")])
def test_a_process_that_fails_in_a_turn_ends_all_and_says_why(llama_folder: Path, victim: int, where: str) -> None:
    why = f"rank {victim} of 4 cannot go on, which ends its group: OutOfMemoryError: none left"
    assert run_ranks(4, failing, llama_folder, victim, where, kind=IN_TWO) == [[why, "4 noticed"]] * 4
