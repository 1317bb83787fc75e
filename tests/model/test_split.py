"""A model split over processes by transformers' plan: logits and hidden states of the whole, a part of the weights, and nobody hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from transformers import (
    DeepseekV2Config,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from specsplit.errors import LoadError
from specsplit.model import CausalLM
from specsplit.model.graphs import Buckets
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.tables import PageTables
from specsplit.model.ranks.commands import Forward, Leave, Move, Trial, Turn, unpacked
from specsplit.model.ranks.split import OLD, check_split, weight_bytes
from specsplit.model.ranks.tensor_group import TensorGroup
from specsplit.ranks.demand import Demand
from tests.model.conftest import POCKET, splits_all
from tests.model.ragged import Ragged, ragged
from tests.model.split_work import (
    PAGES,
    dying,
    failing,
    led,
    led_captured,
    lost_captured,
    refused,
    steps,
    tried,
    waiting,
)
from tests.support.ranks import run_ranks
from tests.support.rounding import assert_same_sums

Tiny = Callable[..., dict[str, Any]]
Saved = Callable[..., Path]
Kinds = dict[str, Callable[[dict[str, Any]], PretrainedConfig]]
CPU = torch.device("cpu")
SEED = 29
"""Of weights with which no two experts are so near to each other that rounding chooses between them."""
ROUTERS = 3 * 4 * 32 * 4
"""Bytes of the routers of a tiny model with experts; every process has them."""
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DENSE: Kinds = {
    "llama": lambda tiny: LlamaConfig(**tiny),
    "llama with biases": lambda tiny: LlamaConfig(**tiny, mlp_bias=True, attention_bias=True),
    "qwen2": lambda tiny: Qwen2Config(**tiny),
    "qwen3": lambda tiny: Qwen3Config(**tiny, head_dim=16),
}
OTHERS: Kinds = {
    "llama with tied embeddings": lambda tiny: LlamaConfig(**tiny, tie_word_embeddings=True),
    "qwen3_moe": lambda tiny: Qwen3MoeConfig(**tiny, **_EXPERTS),
    "mixtral": lambda tiny: MixtralConfig(**tiny, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
}
KINDS = {**DENSE, **OTHERS}


@pytest.mark.parametrize("kind", [*DENSE, *(pytest.param(kind, marks=splits_all) for kind in (*OTHERS, "pocket"))])
def test_a_leader_gets_the_logits_and_hidden_states_of_the_whole_and_each_process_holds_its_part(
    saved: Saved, split_config: Tiny, kind: str
) -> None:
    folder = POCKET if kind == "pocket" else saved(KINDS[kind](split_config()), SEED)
    check_split_in(2, folder)


def test_four_processes_share_four_kv_heads(saved: Saved, split_config: Tiny) -> None:
    check_split_in(4, saved(Qwen3Config(**split_config(num_key_value_heads=4), head_dim=16)))


@splits_all
@pytest.mark.slow
def test_processes_that_share_heads_of_latent_attention_keep_its_latents_each(saved: Saved, split_config: Tiny) -> None:
    widths: dict[str, Any] = {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
    }
    dense: dict[str, Any] = {"first_k_dense_replace": 3, "n_group": 1, "topk_group": 1, "head_dim": 4}
    folder = saved(DeepseekV2Config(**split_config(num_key_value_heads=4), **widths, **dense), SEED)
    whole = CausalLM.load(folder, num_pages=PAGES, page_size=4, cpu_layers=False)
    ranks = run_ranks(2, led, folder, kind=TensorGroup)
    for ours, each in zip(ranks[0][0], steps(whole), strict=True):
        assert_same_sums(torch.from_numpy(ours), each)
    assert [(heads, kv_bytes) for _, heads, _, kv_bytes in ranks] == [(1, whole.kv.nbytes)] * 2
    assert all(held < weight_bytes(whole.model) for _, _, held, _ in ranks)


@contextmanager
def no_tie_of_experts(lm: CausalLM) -> Iterator[None]:
    """Fail if the last expert that is chosen in here leads the first that is not by so little that another order of sums may choose it."""

    def routed(router: Any, inputs: Any, _: object) -> None:
        scores = (inputs[0].reshape(-1, router.weight.shape[1]) @ router.weight.T).sort(descending=True).values
        lead = (scores[:, router.top_k - 1] - scores[:, router.top_k]).min().item()
        assert lead > 1e-4, f"two experts are {lead:.1e} apart, so rounding chooses: another SEED is needed"

    routers = [each for name, each in lm.model.named_modules() if name.endswith("mlp.gate")]
    hooks = [each.register_forward_hook(routed) for each in routers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def check_split_in(size: int, folder: Path) -> None:
    whole = CausalLM.load(folder, num_pages=PAGES, page_size=4, cpu_layers=False)
    ranks = run_ranks(size, led, folder, kind=TensorGroup)
    with no_tie_of_experts(whole):
        expected = steps(whole)
    made = ranks[0][0]
    assert len(made) == len(expected) == 4 * (1 + 3)
    for ours, each in zip(made, expected, strict=True):
        assert_same_sums(torch.from_numpy(ours), each)
    weights, kv_heads = weight_bytes(whole.model), whole.kv.data.shape[3]
    norms = sum(each.nbytes for each in whole.model.parameters() if each.dim() == 1)
    embeddings: Any = whole.model.get_input_embeddings()
    whole_embeddings = embeddings.weight.nbytes if OLD else 0
    for _, heads, held, kv_bytes in ranks:
        assert heads == kv_heads // size
        assert kv_bytes == whole.kv.nbytes // size
        assert weights / size <= held <= weights / size + norms + ROUTERS + whole_embeddings


@pytest.mark.parametrize("kind", ["llama", pytest.param("qwen3_moe", marks=splits_all)])
def test_followers_replay_what_their_leader_replays_and_it_gets_what_the_whole_gives(
    saved: Saved, split_config: Tiny, kind: str
) -> None:
    folder = saved(KINDS[kind](split_config()), SEED)
    expected = steps(CausalLM.load(folder, num_pages=PAGES, page_size=4))
    (made, captures, replayed), *followers = run_ranks(2, led_captured, folder, kind=TensorGroup)
    for ours, each in zip(made, expected, strict=True):
        assert_same_sums(torch.from_numpy(ours), each)
    assert followers == [([], captures, replayed)]
    assert len(replayed) == 2 and captures == len(Buckets(32, 4))


@pytest.mark.parametrize("where", ["the end of a forward", "a launch"])
def test_no_process_holds_what_was_captured_when_connections_to_the_others_are_closed(
    saved: Saved, split_config: Tiny, where: str
) -> None:
    folder = saved(LlamaConfig(**split_config()))
    for said, held in run_ranks(2, lost_captured, folder, where, timeout_s=1.5, kind=TensorGroup):
        assert ("OutOfMemoryError: none left" if where == "a launch" else "the device still waits for it") in said
        assert held == [0]


def test_all_processes_wait_for_their_devices_with_an_end_before_they_ask_what_came_of_a_trial(
    saved: Saved, split_config: Tiny
) -> None:
    both = run_ranks(2, tried, saved(LlamaConfig(**split_config())), kind=TensorGroup)
    assert both == [["settled", "asked", "settled"]] * 2


def test_a_follower_that_waits_takes_no_processor_time() -> None:
    _, busy = run_ranks(2, waiting, kind=TensorGroup)
    assert busy < 0.1, "seconds of a whole one"


@pytest.mark.parametrize("when", ["idle", "in a forward"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_process_is_named_by_the_others(saved: Saved, split_config: Tiny, victim: int, when: str) -> None:
    folder = saved(LlamaConfig(**split_config(num_key_value_heads=4)))
    said = run_ranks(4, dying, folder, victim, 0.0, when, dead=[victim], kind=TensorGroup)
    for rank, each in enumerate(said):
        assert rank == victim or each.startswith(f"rank {victim} of 4 is lost, or did not take part within 20 s"), each


def test_a_follower_that_hangs_in_a_forward_is_named_after_the_timeout(saved: Saved, split_config: Tiny) -> None:
    folder = saved(LlamaConfig(**split_config()))
    said, _ = run_ranks(2, dying, folder, 1, 5.0, "in a forward", timeout_s=1.5, dead=[1], kind=TensorGroup)
    assert said.startswith("rank 1 of 2 is lost, or did not take part within 1.5 s")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_fails_in_a_forward_ends_all_and_says_why(saved: Saved, split_config: Tiny, victim: int) -> None:
    why = f"rank {victim} of 2 cannot go on, which ends its group: OutOfMemoryError: none left"
    both = run_ranks(2, failing, saved(LlamaConfig(**split_config())), victim, kind=TensorGroup)
    assert both == [[why, "2 noticed"]] * 2


def test_a_process_that_cannot_load_its_part_ends_all_and_says_why(saved: Saved, split_config: Tiny) -> None:
    first, second = run_ranks(2, refused, saved(LlamaConfig(**split_config())), 1, kind=TensorGroup)
    assert second == "its disk is gone"
    assert first == "rank 1 of 2 cannot go on, which ends its group: its disk is gone"


@pytest.mark.parametrize(
    ("config", "size", "why"),
    [
        (lambda tiny: LlamaConfig(**tiny), 3, "its 4 attention heads are no multiple of the 3 processes"),
        (lambda tiny: LlamaConfig(**tiny), 4, "its 2 KV heads are no multiple of the 4 processes"),
        (lambda _: GPT2Config(n_embd=32, n_layer=2, n_head=4), 2, "transformers has no plan .* to split gpt2 over 2"),
    ],
)
def test_what_cannot_be_split_is_refused_with_the_reason(
    split_config: Tiny, config: Callable[[dict[str, Any]], PretrainedConfig], size: int, why: str
) -> None:
    with pytest.raises(LoadError, match=why):
        check_split(config(split_config()), size)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (lambda tiny: LlamaConfig(**{**tiny, "vocab_size": 97}), "vocabulary of 97 tokens of llama over 2 processes"),
        (KINDS["mixtral"], "cannot split the experts of mixtral over 2 processes .*: install 5.23"),
        (KINDS["llama with tied embeddings"], "embeddings, which are its LM head, of llama over 2"),
    ],
)
def test_what_an_older_transformers_cannot_split_is_refused(
    split_config: Tiny,
    config: Callable[[dict[str, Any]], PretrainedConfig],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specsplit.model.ranks.split.OLD", True)
    with pytest.raises(LoadError, match=why):
        check_split(config(split_config()), 2)


@given(ragged(4))
def test_rows_that_travel_read_and_write_the_same_slots_through_the_same_masks(batch: Ragged) -> None:
    turn = Turn([7, 0, 40], Demand(40, 5, 0b110))
    arrived = unpacked(Forward(batch.rows, turn).packed(batch.pool.tables))
    assert isinstance(arrived, Forward) and arrived.turn == turn
    ours, theirs = batch.batch(CPU), InputBatch(arrived.rows, PageTables(4), CPU)
    for row, other in zip(batch.rows, arrived.rows, strict=True):
        assert (row.tail_mask == other.tail_mask).all()
    assert ours.run == theirs.run
    for name in ("tokens", "positions", "logits_at", "write_slots"):
        assert getattr(ours, name).tolist() == getattr(theirs, name).tolist()
    assert ours.slots(range(len(batch.rows))).tolist() == theirs.slots(range(len(batch.rows))).tolist()


def test_the_other_commands_travel() -> None:
    move = unpacked(Move(np.array([5, 6, 9]), np.array([4, 5, 6])).packed())
    assert isinstance(move, Move)
    assert (move.source.tolist(), move.target.tolist()) == ([5, 6, 9], [4, 5, 6])
    trial = Trial(Turn([0, 1]))
    assert unpacked(trial.packed()) == trial
    assert unpacked(Leave().packed()) == Leave()
    with pytest.raises(ValueError, match="a command of kind 9, expected 1 to 4"):
        unpacked(np.array([9]))
