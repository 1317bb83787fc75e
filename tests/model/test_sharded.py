"""A model shared out over ranks: the logits of the whole, 1/N of the weights, and nobody hangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from specsplit.errors import LoadError
from specsplit.model import CausalLM
from specsplit.model.layers.sharded import ShardedMlp
from specsplit.model.lm.load import load_model
from tests.model.sharded_work import (
    dying,
    failing,
    failing_part,
    forwards,
    idling,
    leaving,
    logits_of,
    parting,
    rows_of,
    settled,
    settling,
    settling_on_a_second_device,
)
from tests.support.ranks import run_ranks
from tests.support.rounding import assert_same_sums
from tests.support.shared_graphs import Brought, SharedModels

_WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
KINDS: dict[str, Callable[[dict[str, Any]], PretrainedConfig]] = {
    "llama": lambda tiny: LlamaConfig(**tiny),
    "llama with biases": lambda tiny: LlamaConfig(**tiny, mlp_bias=True),
    "qwen2": lambda tiny: Qwen2Config(**tiny),
    "qwen3": lambda tiny: Qwen3Config(**tiny, head_dim=16),
    "qwen3_moe": lambda tiny: Qwen3MoeConfig(**tiny, **_EXPERTS),
    "mixtral": lambda tiny: MixtralConfig(**tiny, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
}
DEALT = [(kind, 2) for kind in KINDS] + [("llama with biases", 4), ("qwen3_moe", 4)]
"""Each kind to two ranks, and each way to cut an MLP to four."""
Tiny = Callable[..., dict[str, Any]]
Saved = Callable[[PretrainedConfig], Path]


class Whole:
    """A model in one piece, and what it gives for sequences, which is computed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lm = CausalLM.load(folder, num_pages=64, page_size=4, cpu_layers=False)
        self._made: dict[tuple[int, ...], list[torch.Tensor]] = {}

    def forwards(self, which: Sequence[int]) -> list[torch.Tensor]:
        """As `sharded_work.forwards`, over pages of their own."""
        key = tuple(which)
        if key not in self._made:
            self._made[key] = forwards(self.lm, None, which)
        return self._made[key]


@pytest.fixture(scope="module")
def whole_of(saved: Saved, tiny_config: Tiny) -> Callable[[str], Whole]:
    """The whole of each kind, loaded once."""
    return cache(lambda kind: Whole(saved(KINDS[kind](tiny_config(**_WIDE)))))


@pytest.fixture(scope="module")
def llama_folder(saved: Saved, tiny_config: Tiny) -> Path:
    return saved(LlamaConfig(**tiny_config(**_WIDE)))


def held_by_mlps(lm: CausalLM) -> int:
    layers: Any = lm.model.model.layers
    return sum(each.nbytes for layer in layers for name, each in layer.mlp.named_parameters() if "proj" in name)


@pytest.mark.parametrize(("kind", "size"), DEALT)
def test_ranks_with_many_rows_few_and_none_get_the_logits_of_the_whole(
    whole_of: Callable[[str], Whole], kind: str, size: int
) -> None:
    whole = whole_of(kind)
    spread = [[0, 1, 2], [3], [], [4]][:size]
    shares = [spread, spread[::-1], [[], [0], *([],) * (size - 2)], [[1]] * size]
    bytes_of_the_whole = held_by_mlps(whole.lm)
    ranks = run_ranks(size, logits_of, whole.folder, shares)
    for rank, (made, layers, held) in enumerate(ranks):
        assert layers == 2
        biases = 0 if kind != "llama with biases" else 2 * 64 * 4  # of the down projections: rank 0 has them whole
        assert held == (bytes_of_the_whole - biases) // size + (biases if rank == 0 else 0)
        for share, logits in zip(shares, made, strict=True):
            for ours, expected in zip(logits, whole.forwards(share[rank]), strict=True):
                assert_same_sums(torch.from_numpy(ours), expected)


def test_a_rank_that_fails_in_the_middle_of_a_forward_holds_nobody_up(llama_folder: Path) -> None:
    ranks = run_ranks(2, failing, llama_folder)
    (first, none), (second, failures) = ranks
    assert none == [] and failures == ["none left at layer 1"]
    assert len(first) == 2 and len(second) == 1
    assert_same_sums(torch.from_numpy(first[0]), torch.from_numpy(first[1]))


@pytest.mark.parametrize(
    "where", ["its part of a block", "room for what is gathered", "where rows lie", "rows that are none"]
)
def test_a_rank_that_cannot_do_its_part_ends_the_group_and_says_why(llama_folder: Path, where: str) -> None:
    first, second = run_ranks(2, failing_part, llama_folder, where)
    assert first == second == "rank 1 of 2 cannot go on, which ends its group: OutOfMemoryError: none left"


def test_a_rank_that_leaves_is_noticed_while_its_process_is_still_there(tmp_path: Path) -> None:
    first, second, third = run_ranks(3, leaving, tmp_path, timeout_s=50.0)
    assert (first, second) == (third, "")
    assert first == "rank 1 of 3 cannot go on, which ends its group: it has had enough"


def test_a_dead_rank_is_named_by_all_others_at_once() -> None:
    *others, _ = run_ranks(4, dying, 3, 0.0, dead=[3])  # rank 1 is next to those alone who are next to the dead one
    for said, seconds in others:
        assert said.startswith("rank 3 of 4 is lost, or did not take part within 20 s")
        assert seconds < 10


def test_a_rank_that_hangs_is_named_by_all_others_within_the_timeout() -> None:
    first, _, third = run_ranks(3, dying, 1, 8.0, timeout_s=2.0, dead=[1])
    for said, seconds in (first, third):
        assert said.startswith("rank 1 of 3 is lost, or did not take part within 2 s")
        assert 1.0 < seconds < 7


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_rank_that_a_device_waits_for_in_vain_is_named_once_the_time_is_up(how: str) -> None:
    first, second, third = run_ranks(3, settling, 1, how, timeout_s=1.5, dead=[1])
    assert second is None
    for said, seconds in (first, third):
        assert said.startswith("rank 1 of 3 is lost, or did not take part within 1.5 s: the device still waits for it")
        assert said.endswith("parted closed"), "what was captured is given up before connections are closed"
        assert 1.5 <= seconds < 8


def test_who_waits_for_a_device_learns_that_another_rank_cannot_go_on_long_before_the_time_is_up() -> None:
    first, _, third = run_ranks(3, settling, 1, "says so", timeout_s=50.0)
    for said, seconds in (first, third):
        assert said.startswith("rank 1 of 3 cannot go on, which ends its group: it has had enough")
        assert seconds < 20


def test_two_threads_that_part_from_the_others_at_the_same_time_do_what_comes_before_that_once() -> None:
    assert run_ranks(1, parting) == [["parted"]]


def test_ranks_wait_for_each_other_and_for_their_devices() -> None:
    assert run_ranks(2, settled) == [[(0, 7), (1, 7)]] * 2


def test_a_rank_waits_for_the_device_that_it_computes_on_whatever_that_of_its_thread() -> None:
    assert run_ranks(1, settling_on_a_second_device) == [["cuda:1"] * 3]


def test_a_block_asks_for_what_was_gathered_once_the_device_has_been_waited_for_with_an_end(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, done = SharedModels.load(llama_folder, 2), list[str]()

    def told(name: str) -> Callable[..., Any]:
        work = getattr(models.meshes[0], name)
        return lambda *args: (done.append(name), work(*args))[1]

    for name in ("gather", "synchronize", "reduce_scatter"):
        monkeypatch.setattr(models.meshes[0], name, told(name))
    for module in models.lms[0].model.modules():
        if isinstance(module, ShardedMlp):
            module.block.register_forward_pre_hook(lambda *_: done.append("block"))
    models.turns([Brought(rows_of(models.lms[0], [0])[0]), Brought()], eager=True)
    assert done == [*["gather", "synchronize", "block", "reduce_scatter"] * 2, "synchronize"]


def test_an_idle_rank_runs_the_collectives_of_the_model_and_nothing_more(llama_folder: Path) -> None:
    busy, idle = run_ranks(2, idling, llama_folder)
    assert busy == (2, 2), "once through two layers; the turn of two idle ranks costs neither of them anything"
    assert idle == (0, 2)


class _Rank:
    """A rank of a group that is not there: enough to cut a model."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size = size


@pytest.mark.parametrize(
    ("config", "size", "why"),
    [
        (lambda tiny: LlamaConfig(**tiny), 5, r"width of 96 is no multiple of the 5 ranks"),
        (lambda tiny: GPTNeoXConfig(**tiny), 2, r"GPTNeoXLayer .*GPTNeoXMLP.* supported are MLPs of gate_proj"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_with_what_can(
    saved: Saved, tiny_config: Tiny, config: Callable[[dict[str, Any]], PretrainedConfig], size: int, why: str
) -> None:
    mesh: Any = _Rank(size)
    with pytest.raises(LoadError, match=why):
        load_model(saved(config(tiny_config(**_WIDE))), mesh=mesh)
