"""Heads shared out over ranks: the logits of the whole, and 1/N of its MLPs or experts on each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MixtralConfig, PretrainedConfig, Qwen3MoeConfig

from specsplit.errors import LoadError
from specsplit.model import PageTable, Row
from specsplit.model.heads import Head, HeadRunner, MtpHead, TargetEmbeddings, load_head, save_head
from specsplit.model.layers.sharded import ShardedMlp
from specsplit.model.ranks.mesh import TorchMesh
from specsplit.values import DrafterKind
from tests.model.heads.eagle3_layouts import LAYOUTS3
from tests.model.heads.published import EVERYBODY, TARGET_FACTS, write
from tests.support.ranks import run_ranks
from tests.support.rounding import assert_same_sums

Folder = tuple[Path, Path, DrafterKind]
"""Of a head, of its target, and what the head is run as."""
_SHAPE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings",
)  # fmt: skip


def with_experts(config: PretrainedConfig, target: Path, folder: Path) -> Folder:
    """A multi-token prediction head of two layers with random weights."""
    torch.manual_seed(3)
    head = MtpHead([config] * 2, TargetEmbeddings.load(target))
    for parameter in head.parameters():
        if parameter.requires_grad and parameter.ndim > 1:
            parameter.data.normal_(std=parameter.shape[-1] ** -0.5)
    save_head(head, folder)
    return folder, target, DrafterKind.MULTI_LAYER_EAGLE


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, target: Path) -> list[Folder]:
    shape = {name: TARGET_FACTS[name] for name in _SHAPE}
    qwen = Qwen3MoeConfig(**shape, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    mixtral = MixtralConfig(**shape, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    made = [with_experts(config, target, tmp_path_factory.mktemp("head")) for config in (qwen, mixtral)]
    for name in ("eagle", "eagle3", "deepseek"):
        published = EVERYBODY[name]
        folder = write(tmp_path_factory.mktemp("head"), published.facts, published.tensors(), "single")
        made.append((folder, folder if published.inside_target else target, published.kind))
    for name in ("windows", "latents, two layers, plain queries"):
        layout = LAYOUTS3[name]
        folder = write(tmp_path_factory.mktemp("head"), layout.facts, layout.tensors())
        made.append((folder, target, DrafterKind.EAGLE3))
    return made


def logits_of(head: Head, mesh: TorchMesh | None, counts: Sequence[int]) -> list[Tensor]:
    """Of every step: those of as many tokens as this rank has in that step."""
    made: list[Tensor] = []
    for step, count in enumerate(counts[: head.shape.num_steps]):
        runner = HeadRunner(head, step, 16)
        states = torch.randn(count, head.shape.state_width, generator=torch.Generator().manual_seed(count))
        rows: list[Row] = []
        if count:
            table = PageTable(runner.pool)
            table.reserve(count)
            rows.append(Row.chunk([(7 * place) % 90 for place in range(count)], table.upto(count)))
        if mesh is None:
            made.append(head.logits(step, runner.forward(rows, states)[0]))
            continue
        with head.blocks[step].turn([told for (told,) in mesh.exchange([count])]):
            made.append(head.logits(step, runner.forward(rows, states)[0]))
    return made


def shared(mesh: TorchMesh, folders: Sequence[Folder], shares: Sequence[Sequence[Sequence[int]]]) -> Any:
    """For every head: this rank's logits of every share, and what it holds of the MLPs."""
    made: list[Any] = []
    for folder, target, kind in folders:
        head = load_head(folder, target, kind, mesh=mesh)
        with torch.inference_mode():
            logits = [[each.numpy() for each in logits_of(head, mesh, share[mesh.rank])] for share in shares]
        mlps = [module for module in head.modules() if isinstance(module, ShardedMlp)]
        held = [each for mlp in mlps for name, each in mlp.named_parameters() if "proj" in name]
        made.append((logits, sum(each.untyped_storage().nbytes() for each in held)))
    return made


def held_by_mlps(head: Head) -> int:
    layers: Any = head.layers
    return sum(each.nbytes for layer in layers for name, each in layer.mlp.named_parameters() if "proj" in name)


def test_ranks_with_many_rows_few_and_none_get_the_logits_of_the_whole_head(folders: list[Folder]) -> None:
    shares = [[(5, 3), (2, 0)], [(0, 4), (6, 1)], [(0, 0), (3, 2)]]
    ranks = run_ranks(2, shared, folders, shares)
    for number, (folder, target, kind) in enumerate(folders):
        whole = load_head(folder, target, kind)
        for rank, made in enumerate(ranks):
            logits, held = made[number]
            assert held == held_by_mlps(whole) // 2 > 0
            for share, ours in zip(shares, logits, strict=True):
                with torch.inference_mode():
                    expected = logits_of(whole, None, share[rank])
                for mine, theirs in zip(ours, expected, strict=True):
                    assert_same_sums(torch.from_numpy(mine), theirs)


class _Rank:
    """A rank of a group that is not there: enough to cut a head."""

    rank, size = 0, 5


def test_a_head_whose_mlps_cannot_be_shared_out_is_refused(folders: list[Folder]) -> None:
    mesh: Any = _Rank()
    folder, target, kind = folders[0]
    with pytest.raises(LoadError, match=r"width of 16 is no multiple of the 5 ranks"):
        load_head(folder, target, kind, mesh=mesh)
