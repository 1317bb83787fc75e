"""What the target writes and has along a text, and how that is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from specsplit.errors import Incompatible
from specsplit.features import LAST
from specsplit.training.lessons import HIDDEN, TEXTS, Lessons, Sample
from specsplit.training.teacher import Reading, Task, Teacher
from tests.support.greedy import greedy_texts
from tests.support.rounding import assert_same_sums

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
PROMPTS = [(5, 17, 300), (700, 12), tuple(range(40, 60)), (9,)]
NEW = 12


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher.load(POCKET, longest=8192, dtype="float32", device="cpu")  # two texts at once


def tasks(temperature: float, most: int = NEW) -> list[Task]:
    return [Task(index, prompt, most, temperature, seed=index) for index, prompt in enumerate(PROMPTS)]


def test_greedy_texts_are_those_that_transformers_writes(teacher: Teacher) -> None:
    written = {task.index: [*task.prompt, *new] for task, new in teacher.write(tasks(0))}
    ends = teacher.info.eos_token_ids
    for index, expected in enumerate(greedy_texts(POCKET, [list(prompt) for prompt in PROMPTS], NEW)):
        behind = len(PROMPTS[index])
        stop = next((at + 1 for at in range(behind, len(expected)) if expected[at] in ends), len(expected))
        assert written[index] == expected[:stop]


def test_a_sampled_text_depends_on_its_seed_and_not_on_the_others(teacher: Teacher) -> None:
    together = {task.index: new for task, new in teacher.write(tasks(1.0))}
    for task in tasks(1.0):
        ((_, alone),) = teacher.write([task])
        assert alone == together[task.index]
    ((_, other),) = teacher.write([Task(0, PROMPTS[0], NEW, 1.0, seed=77)])
    assert other != together[0]


def test_hidden_states_and_choices_are_those_of_transformers(teacher: Teacher) -> None:
    tokens = tuple(torch.randint(0, 2048, (300,), generator=torch.Generator().manual_seed(0)).tolist())
    reading = teacher.read(tokens, (2, 6, LAST))
    model = AutoModelForCausalLM.from_pretrained(POCKET, dtype=torch.float32)
    with torch.inference_mode():
        read = model(torch.tensor([tokens]), output_hidden_states=True)
    assert reading.hidden.shape == (300, 3, 256)
    assert_same_sums(reading.hidden[:, 0], read.hidden_states[2][0])
    assert_same_sums(model.model.norm(reading.hidden[:, 1]).detach(), read.hidden_states[-1][0])
    assert_same_sums(reading.hidden[:, 2], read.hidden_states[-1][0])
    top = read.logits[0].topk(2).values
    clear = top[:, 0] - top[:, 1] > 1e-3
    assert torch.equal(reading.chosen[clear], read.logits[0].argmax(-1)[clear])


def test_a_layer_that_the_target_does_not_have_is_refused(teacher: Teacher) -> None:
    with pytest.raises(Incompatible, match="layer 7"):
        teacher.read((1, 2, 3), (7,))


def reading(length: int) -> Reading:
    return Reading(torch.randn(length, 2, 4), torch.arange(length))


def test_lessons_are_kept_in_the_layout_of_the_trainer_and_found_again(tmp_path: Path) -> None:
    lessons = Lessons(tmp_path, count=3, held_out=1)
    assert (list(lessons.learnt), list(lessons.held_out)) == ([0, 1], [2])
    for index in (2, 0, 1):
        lessons.add(Sample(index, (7, 8, 9, index), 2))
    lessons.sort()
    made = reading(4)
    lessons.keep(1, made)
    again = Lessons(tmp_path, count=3, held_out=1)
    assert [again.text(index).tokens[-1] for index in range(3)] == [0, 1, 2]
    assert [again.was_read(index) for index in range(3)] == [False, True, False]
    tensors = load_file(tmp_path / HIDDEN / "hs_1.safetensors")
    assert torch.equal(tensors["hidden_states"], made.hidden.bfloat16())
    assert tensors["token_ids"].tolist() == [7, 8, 9, 1]
    assert torch.equal(again.lesson(1).chosen, made.chosen)


def test_what_a_killed_run_had_half_written_is_written_anew(tmp_path: Path) -> None:
    lessons = Lessons(tmp_path, count=2, held_out=1)
    for index in range(2):
        lessons.add(Sample(index, (1, 2, 3), 1))
        lessons.keep(index, reading(3))
    file = tmp_path / TEXTS
    file.write_text(file.read_text()[:-5])
    (tmp_path / HIDDEN / "hs_0.safetensors").write_bytes(b"\x08\x00")
    again = Lessons(tmp_path, count=2, held_out=1)
    assert 0 in again and 1 not in again
    assert not again.was_read(0)
    again.add(Sample(1, (1, 2, 3), 1))
    assert [text["index"] for text in map(__import__("json").loads, file.read_text().splitlines())] == [0, 1]
