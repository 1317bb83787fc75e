from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from scripts.pocket.target import config, save_bf16
from specsplit.model import Row, RowPages
from specsplit.model.heads import Eagle3Head, Head, HeadRunner, TargetEmbeddings, load_head, save_head
from specsplit.training.figures import agreed, features_of
from specsplit.training.fit import Schedule, fit
from specsplit.training.lessons import Lesson, Sample
from specsplit.training.meter import unmetered
from specsplit.training.order import HeadOrder
from specsplit.training.own import build
from specsplit.training.recipe import RECIPES, Batch, Recipe, batches_of, loss_of, soft_cross_entropy
from specsplit.training.rollout import rollout, rows_of
from specsplit.values import DrafterKind
from tests.support.rounding import assert_same_sums

KINDS = [DrafterKind.EAGLE, DrafterKind.EAGLE3, DrafterKind.MULTI_LAYER_EAGLE]
STEPS = 6
DEPTH = 4
VOCAB = 2048


@pytest.fixture
def target(tmp_path: Path) -> LlamaForCausalLM:
    torch.manual_seed(0)
    tiny = LlamaForCausalLM(config(0, hidden=16, layers=6, heads=2, kv_heads=1, mlp=32))
    torch.nn.init.uniform_(tiny.model.norm.weight, 0.5, 1.5)
    save_bf16(tiny, tmp_path / "target")
    return tiny.bfloat16().float().eval().requires_grad_(False)


@pytest.fixture(params=KINDS)
def head(request: pytest.FixtureRequest, target: LlamaForCausalLM, tmp_path: Path) -> Head:
    return fresh(request.param, target, tmp_path)


@pytest.fixture(params=list(RECIPES))
def taught_here(request: pytest.FixtureRequest, target: LlamaForCausalLM, tmp_path: Path) -> Head:
    return fresh(request.param, target, tmp_path)


def fresh(kind: DrafterKind, target: LlamaForCausalLM, tmp_path: Path) -> Head:
    """A head that has learnt nothing."""
    if kind is DrafterKind.EAGLE3:
        torch.manual_seed(0)
        ends = TargetEmbeddings.load(tmp_path / "target", lm_head=False)
        layer = copy.deepcopy(target.config)
        layer.dtype = torch.float32
        layer.tie_word_embeddings = False
        made = Eagle3Head(layer, ends, layers=(2, 4, 6), draft_vocab_size=64)
        made.set_draft_tokens(torch.arange(64) * 3 + 1)
        return made
    data = tmp_path / "data.txt"
    data.write_text("x")
    return build(HeadOrder(tmp_path / "target", (data,), kind, tmp_path / "head", depth=DEPTH))


def lessons_for(head: Head, lengths: tuple[int, ...] = (9, 9), answer: int = 1, seed: int = 1) -> list[Lesson]:
    chance = torch.Generator().manual_seed(seed)
    made: list[Lesson] = []
    for index, length in enumerate(lengths):
        tokens, chosen = torch.randint(0, VOCAB, (2, length), generator=chance)
        hidden = torch.randn(length, len(head.shape.need.layers), 16, generator=chance)
        made.append(Lesson(Sample(index, tuple(tokens.tolist()), answer), hidden, chosen))
    return made


def test_a_rollout_is_what_serving_computes_row_by_row(head: Head) -> None:
    batch = Batch.of(head, lessons_for(head, (5 + DEPTH, 5 + DEPTH)))
    rows = rows_of(5 + DEPTH, DEPTH)
    states = head.fuse(batch.features[:, :rows])
    with torch.no_grad():
        at_once = [logits.unflatten(0, (2, rows)) for logits, _ in rollout(head, batch.tokens, states, DEPTH)]
    serve = served_by_itself if head.shape.recurrent else served_by_layers
    for sequence in range(2):
        for row in range(rows):
            one_by_one = serve(head, batch.tokens[sequence], states[sequence], row)
            assert_same_sums(torch.stack([step[sequence, row] for step in at_once]), torch.stack(one_by_one))


def served_by_itself(head: Head, tokens: Tensor, states: Tensor, row: int) -> list[Tensor]:
    """Draft logits of `row` in every step: true rows up to it, then one row after the other on the head's own states."""
    runner = HeadRunner(head, 0, 32)
    slots = runner.pool.allocate(row + DEPTH)
    state, said = states[: row + 1].detach(), []
    for ahead in range(DEPTH):
        read = tokens[1 : row + 2] if ahead == 0 else tokens[row + 1 + ahead, None]
        hidden, state = runner.forward(
            [Row.chunk(read.numpy(), RowPages.alone(slots[: row + 1 + ahead], row + 1 + ahead))], state
        )
        state = state[-1:]
        said.append(head.draft_logits(0, hidden[-1]).detach())
    return said


def served_by_layers(head: Head, tokens: Tensor, states: Tensor, row: int) -> list[Tensor]:
    """Draft logits of `row` in every step: rows of each layer one by one."""
    state, said = states.detach(), []
    for layer in range(DEPTH):
        runner = HeadRunner(head, layer, 32)
        slots = runner.pool.allocate(row + 1)
        each = [
            runner.forward(
                [Row.chunk(tokens[1 + layer + i, None].numpy(), RowPages.alone(slots[: i + 1], i + 1))],
                state[i : i + 1],
            )
            for i in range(row + 1)
        ]
        state = torch.cat([next_state for _, next_state in each])
        said.append(head.draft_logits(layer, each[-1][0][0]).detach())
    return said


def test_what_stands_before_the_lm_head_of_a_layer_for_every_step_begins_as_the_targets(
    target: LlamaForCausalLM, tmp_path: Path
) -> None:
    tensors = fresh(DrafterKind.MULTI_LAYER_EAGLE, target, tmp_path).own_tensors()
    norms = [tensor for name, tensor in tensors.items() if name.endswith("final_norm.weight")]
    assert len(norms) == DEPTH
    assert all(torch.equal(norm, target.model.norm.weight) for norm in norms)


def test_soft_cross_entropy_is_that_of_torch_and_least_where_both_agree() -> None:
    torch.manual_seed(0)
    guessed, wanted = torch.randn(3, 5), torch.randn(3, 5)
    counted = torch.tensor([True, False, True])
    loss = soft_cross_entropy(guessed, wanted.softmax(-1), counted)
    by_torch = torch.nn.functional.cross_entropy(guessed[counted], wanted[counted].softmax(-1))
    assert loss.item() == pytest.approx(by_torch.item())
    assert loss > soft_cross_entropy(wanted, wanted.softmax(-1), counted)


def test_what_fills_up_a_short_text_changes_nothing(taught_here: Head) -> None:
    batch = Batch.of(taught_here, lessons_for(taught_here, (9, 15), answer=4))
    assert batch.counted.sum(1).tolist() == [6, 12], "from the token in front of the answer on"
    filled = replace(batch, tokens=batch.tokens.clone(), features=batch.features.clone())
    filled.tokens[0, 9:], filled.features[0, 9:] = 7, 3.0
    losses = [loss_of(taught_here, Recipe(), each, DEPTH, 0).item() for each in (batch, filled)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_every_text_is_in_one_batch_of_an_epoch_and_none_is_larger_than_asked_for() -> None:
    lengths = [5, 9, 3, 12, 7, 7, 30]
    for epoch in range(3):
        batches = batches_of(lengths, 24, seed=1, epoch=epoch)
        assert sorted(number for batch in batches for number in batch) == list(range(7))
        assert all(len(batch) == 1 or len(batch) * max(lengths[n] for n in batch) <= 24 for batch in batches)
        assert batches == batches_of(lengths, 24, seed=1, epoch=epoch)
    assert batches_of(lengths, 24, 1, 0) != batches_of(lengths, 24, 1, 1)


def train(head: Head, state: Path, *, interrupted: bool = False) -> None:
    lessons = lessons_for(head, (12, 9, 12, 10))

    def save() -> None:
        if interrupted:
            raise KeyboardInterrupt

    fit(
        head,
        lambda step: loss_of(head, RECIPES[head.shape.kind], Batch.of(head, lessons[step % 2 :]), DEPTH, step),
        Schedule(STEPS, 3e-3, warmup_steps=2, save_every=2),
        state,
        save,
        unmetered,
    )


def test_training_lowers_the_loss_and_what_is_saved_is_loaded(taught_here: Head, tmp_path: Path) -> None:
    recipe = replace(RECIPES[taught_here.shape.kind], noise=0.0)
    batch = Batch.of(taught_here, lessons_for(taught_here, (12, 9, 12, 10)))
    before = loss_of(taught_here, recipe, batch, DEPTH, 0).item()
    train(taught_here, tmp_path / "head.pt")
    assert loss_of(taught_here, recipe, batch, DEPTH, 0).item() < before
    save_head(taught_here, tmp_path / "head", dtype=torch.bfloat16)
    loaded = load_head(tmp_path / "head", tmp_path / "target", taught_here.shape.kind)
    rounded = taught_here.bfloat16().float()
    assert loaded.shape.need == taught_here.shape.need
    assert all(torch.equal(tensor, loaded.own_tensors()[name]) for name, tensor in rounded.own_tensors().items())


def test_an_interrupted_training_ends_as_an_unbroken_one(taught_here: Head, tmp_path: Path) -> None:
    broken, again = copy.deepcopy(taught_here), copy.deepcopy(taught_here)
    train(taught_here, tmp_path / "whole.pt")
    with pytest.raises(KeyboardInterrupt):
        train(broken, tmp_path / "broken.pt", interrupted=True)
    train(again, tmp_path / "broken.pt")
    for name, tensor in taught_here.own_tensors().items():
        assert torch.equal(tensor, again.own_tensors()[name]), name


def test_a_target_that_says_what_its_head_says_agrees_with_it(head: Head) -> None:
    lesson = lessons_for(head, (12,), answer=4)[0]
    rows = rows_of(12, DEPTH)
    with torch.no_grad():
        states = head.fuse(features_of(head.shape.need, lesson.hidden)[None, :rows])
        guessed, _ = next(rollout(head, torch.tensor([lesson.text.tokens]), states, DEPTH))
        said = guessed.argmax(-1)
        alike = torch.full((12,), -1)
        alike[1 : 1 + rows] = said if head.target_ids is None else head.target_ids[said]
        right = agreed(head, replace(lesson, chosen=alike), DEPTH)
    assert right.shape == (DEPTH, rows - 2), "rows 0 and 1 guess tokens of the prompt"
    assert right[0].all()


def test_a_text_that_is_too_short_has_no_places(head: Head) -> None:
    assert agreed(head, lessons_for(head, (DEPTH,))[0], DEPTH).shape == (DEPTH, 0)
