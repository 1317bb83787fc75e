from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from scripts.pocket import heads
from scripts.pocket.continuations import Continuations
from scripts.pocket.heads import RECIPES, School, build, loss_of, soft_cross_entropy
from scripts.pocket.lesson import Lesson, teach
from scripts.pocket.measure_heads import ask
from scripts.pocket.rollout import rollout, rows_of
from scripts.pocket.target import config, save_bf16
from scripts.pocket.training import Schedule
from specsplit.features import LAST
from specsplit.model import Row, RowPages
from specsplit.model.heads import Head, HeadRunner, load_head, save_head
from specsplit.values import DrafterKind
from tests.support.rounding import assert_same_sums

KINDS = [kind for kind in DrafterKind if kind.is_head]
STEPS = 6
DEPTH = 4


@pytest.fixture
def target(tmp_path: Path) -> LlamaForCausalLM:
    torch.manual_seed(0)
    tiny = LlamaForCausalLM(config(0, hidden=16, layers=6, heads=2, kv_heads=1, mlp=32))
    torch.nn.init.uniform_(tiny.model.norm.weight, 0.5, 1.5)
    save_bf16(tiny, tmp_path / "target")
    return tiny.bfloat16().float().eval().requires_grad_(False)


@pytest.fixture
def school(target: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> School:
    monkeypatch.setattr(heads, "CONTEXT", 32)
    monkeypatch.setattr(heads, "Schedule", partial(Schedule, warmup_steps=2, save_every=2))
    chance = np.random.default_rng(0)
    own = Continuations("", torch.from_numpy(chance.integers(0, 2048, (4, 70)))[:, :20])
    return School(target, chance.integers(0, 2048, 600).astype(np.uint16), own)


@pytest.fixture(params=KINDS)
def head(request: pytest.FixtureRequest, school: School, tmp_path: Path) -> Head:
    return build(request.param, tmp_path / "target", school.target, school.own)


def lesson_for(head: Head, school: School, sequences: int = 2, width: int = 9) -> Lesson:
    tokens = torch.from_numpy(np.random.default_rng(1).integers(0, 2048, (sequences, width)))
    return teach(school.target, tokens, head.shape.need.layers)


def short(head: Head) -> heads.Recipe:
    return replace(RECIPES[head.shape.kind], steps=STEPS)


def test_a_lesson_has_the_hidden_states_of_the_layers_asked_for(target: LlamaForCausalLM) -> None:
    tokens = torch.arange(10).view(2, 5)
    lesson = teach(target, tokens, (LAST, 0))
    assert torch.equal(target.lm_head(lesson.features[..., :16]), lesson.logits)
    assert torch.equal(lesson.features[..., 16:], target.get_input_embeddings()(tokens))
    behind_the_last = teach(target, tokens, (target.config.num_hidden_layers,)).features
    assert torch.equal(target.model.norm(behind_the_last), lesson.features[..., :16])


def test_what_stands_before_the_lm_head_begins_as_the_targets(target: LlamaForCausalLM, head: Head) -> None:
    tensors = head.own_tensors()
    norms = [tensor for name, tensor in tensors.items() if name.endswith("final_norm.weight") or name == "norm.weight"]
    assert (
        len(norms) == {DrafterKind.EAGLE: 0, DrafterKind.EAGLE3: 1, DrafterKind.MULTI_LAYER_EAGLE: 4}[head.shape.kind]
    )
    assert all(torch.equal(norm, target.model.norm.weight) for norm in norms)
    if head.target_ids is not None:
        assert torch.equal(tensors["lm_head.weight"], target.lm_head.weight[head.target_ids])


def test_a_rollout_is_what_serving_computes_row_by_row(head: Head, school: School) -> None:
    lesson = lesson_for(head, school, width=5 + DEPTH)
    rows = rows_of(5 + DEPTH, DEPTH)
    states = head.fuse(lesson.features[:, :rows])
    with torch.no_grad():
        at_once = [logits.unflatten(0, (2, rows)) for logits, _ in rollout(head, lesson.tokens, states, DEPTH)]
    serve = served_by_itself if head.shape.recurrent else served_by_layers
    for sequence in range(2):
        for row in range(rows):
            one_by_one = serve(head, lesson.tokens[sequence], states[sequence], row)
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


def test_soft_cross_entropy_is_that_of_torch_and_least_where_both_agree() -> None:
    torch.manual_seed(0)
    guessed, wanted = torch.randn(3, 5), torch.randn(3, 5)
    loss = soft_cross_entropy(guessed, wanted.softmax(-1))
    assert loss.item() == pytest.approx(torch.nn.functional.cross_entropy(guessed, wanted.softmax(-1)).item())
    assert loss > soft_cross_entropy(wanted, wanted.softmax(-1))


def test_training_lowers_the_loss_and_what_is_saved_is_loaded(head: Head, school: School, tmp_path: Path) -> None:
    recipe, lesson = short(head), lesson_for(head, school)
    before = loss_of(head, recipe, lesson, 0).item()
    folder = tmp_path / "head"
    school.train(head, recipe, tmp_path / "head.pt", lambda: save_head(copy.deepcopy(head).bfloat16(), folder))
    assert loss_of(head, recipe, lesson, 0).item() < before
    loaded = load_head(folder, tmp_path / "target", head.shape.kind)
    rounded = head.bfloat16().float()
    assert loaded.shape.need == head.shape.need
    assert all(torch.equal(tensor, loaded.own_tensors()[name]) for name, tensor in rounded.own_tensors().items())


def test_an_interrupted_training_ends_as_an_unbroken_one(head: Head, school: School, tmp_path: Path) -> None:
    broken = copy.deepcopy(head)
    school.train(head, short(head), tmp_path / "whole.pt", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        school.train(broken, short(head), tmp_path / "broken.pt", interrupt)
    again = copy.deepcopy(broken)
    school.train(again, short(head), tmp_path / "broken.pt", lambda: None)
    for name, tensor in head.own_tensors().items():
        assert torch.equal(tensor, again.own_tensors()[name]), name


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_target_that_says_what_its_head_says_agrees_with_it(head: Head, school: School) -> None:
    lesson = lesson_for(head, school)
    rows, ids = rows_of(9, DEPTH), head.target_ids
    with torch.no_grad():
        guessed, _ = next(rollout(head, lesson.tokens, head.fuse(lesson.features[:, :rows]), DEPTH))
        alike = torch.full_like(lesson.logits, -torch.inf)
        alike[:, 1 : 1 + rows, slice(None) if ids is None else ids] = guessed.unflatten(0, (2, rows))
        answers = ask(head, replace(lesson, logits=alike), first=4)
    assert answers.agreed.shape == (DEPTH, 2 * (rows - 2))
    assert answers.agreed[0].all()
    torch.testing.assert_close(answers.overlap[0], torch.ones(2 * (rows - 2)))
