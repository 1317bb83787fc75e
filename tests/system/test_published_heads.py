"""Heads in every published layout of EAGLE-3, in processes: the text is the target's own, and a head drafts as far as it was made for."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.client import Delta
from specsplit.values import DrafterKind
from tests.model.heads.eagle3_layouts import LAYOUTS3
from tests.model.heads.published import VOCAB, write
from tests.support.slow import slowly
from tests.support.toys import write_byte_tokenizer
from tests.system.conftest import SERIAL, eventually

DATA = Path("tests/data/heads")
POCKET = Path("models/pocket/target")
KIND = DrafterKind.EAGLE3
SAVED = sorted(folder.name for folder in DATA.iterdir() if folder.is_dir())
QUICK = {"eagle3-all-at-once", "peagle-qwen3", "latents", "dspark"}
REACH = 80
"""Tokens of a text that the short head was made for."""


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int, int], LocalCluster]]:
    """Clusters without a drafter, by vocabulary and hidden size of their target, which has random weights and eight layers."""
    with ExitStack() as running:

        @cache
        def cluster(vocab_size: int, hidden_size: int) -> LocalCluster:
            folder = tmp_path_factory.mktemp("target")
            torch.manual_seed(2)
            config = LlamaConfig(
                vocab_size=vocab_size, hidden_size=hidden_size, intermediate_size=24, num_hidden_layers=8, num_attention_heads=2,
                num_key_value_heads=1, head_dim=8, max_position_embeddings=256, tie_word_embeddings=False,
                bos_token_id=None, eos_token_id=None, pad_token_id=0, initializer_range=0.4,
            )  # fmt: skip
            LlamaForCausalLM(config).save_pretrained(folder)
            write_byte_tokenizer(folder)
            return running.enter_context(LocalCluster(folder, {KIND: folder}, drafters=[]))

        yield cluster


def kind_of(name: str) -> DrafterKind:
    """The kind that a folder of tests/data/heads runs as."""
    return next((kind for kind in (DrafterKind.DFLASH, DrafterKind.DSPARK) if name.startswith(kind.value)), KIND)


def draft_with(cluster: LocalCluster, head: Path, kind: DrafterKind = KIND) -> None:
    """Have a drafter with this head draft texts, greedy and sampled, which have to be the target's own."""
    drafter = cluster.spawn_drafter(kind, model=head)
    cluster.wait_joined()
    prompt, hits = [3, 14, 15, 9, 26, 5], 0
    with cluster.client() as client:
        for temperature, seed in [(0.0, 0), (1.0, 7), *((1.0, seed) for seed in range(8, 30))]:
            wish = {"max_tokens": 40, "ignore_eos": True, "temperature": temperature, "seed": seed}
            if hits and seed > 7:
                break
            alone = client.generate(prompt, drafter="none", **wish)
            result = client.generate(prompt, drafter=kind.value, plan=SERIAL, **wish)
            assert result.tokens == alone.tokens
            assert result.done.drafter == drafter.name
            hits += result.speculation.hits
        drafter.kill()
        eventually(lambda: drafter.name not in {member.member_id for member in client.cluster().members})
    assert hits > 0, "by chance, of so many tokens: its weights are random"


def quick_first(names: Collection[str]) -> list[Any]:
    return [*(name for name in names if name in QUICK), *slowly(*(name for name in names if name not in QUICK))]


@pytest.mark.parametrize("name", quick_first(SAVED))
def test_the_text_with_a_head_as_speculators_saves_it_is_the_targets_own(
    clusters: Callable[[int, int], LocalCluster], name: str
) -> None:
    draft_with(clusters(64, 16), DATA / name, kind_of(name))


@pytest.mark.parametrize("name", quick_first(LAYOUTS3))
def test_the_text_with_a_head_in_another_layout_is_the_targets_own(
    clusters: Callable[[int, int], LocalCluster], tmp_path: Path, name: str
) -> None:
    layout = LAYOUTS3[name]
    draft_with(clusters(VOCAB, layout.target_hidden), write(tmp_path, layout.facts, layout.tensors()))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pocket head, made for texts of REACH tokens."""
    folder, whole = tmp_path_factory.mktemp("short"), drafts_beside(POCKET)[KIND]
    (folder / "model.safetensors").symlink_to((whole / "model.safetensors").resolve())
    facts = json.loads((whole / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**facts, "max_position_embeddings": REACH}))
    return folder


@pytest.fixture(scope="module")
def pocket(short: Path) -> Iterator[LocalCluster]:
    with LocalCluster(POCKET, {KIND: short}, drafters=[KIND]) as started:
        yield started


def test_a_head_drafts_up_to_the_positions_that_it_was_made_for_and_the_target_goes_on_alone(
    pocket: LocalCluster,
) -> None:
    prompt = [(7 * place) % 900 + 300 for place in range(REACH // 2)]
    with pocket.client() as client:
        alone = client.generate(prompt, max_tokens=80, ignore_eos=True, drafter="none")
        tokens, drafted = list[int](), 0
        for event in client.stream(prompt, max_tokens=80, ignore_eos=True, drafter=KIND.value, plan=SERIAL):
            if isinstance(event, Delta):
                tokens += event.tokens
                drafted += event.num_correct_drafts
                drafted_up_to = len(prompt) + len(tokens) - len(event.tokens) + event.num_correct_drafts
                assert not event.num_correct_drafts or drafted_up_to <= REACH
    assert tuple(tokens) == alone.tokens
    assert drafted > 0
    assert f"made for texts of {REACH} tokens" in pocket.drafters[0].tail


def test_a_text_that_begins_behind_them_gets_no_drafts(pocket: LocalCluster) -> None:
    prompt = [(7 * place) % 900 + 300 for place in range(REACH + 1)]
    with pocket.client() as client:
        alone = client.generate(prompt, max_tokens=20, ignore_eos=True, drafter="none")
        result = client.generate(prompt, max_tokens=20, ignore_eos=True, drafter=KIND.value, plan=SERIAL)
    assert result.tokens == alone.tokens
    assert not result.speculation.drafted
