"""Lessons from files of text: prompts are made of them, the target writes answers, and reads all."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Final

import numpy as np
from transformers import PretrainedConfig

from specsplit.errors import Exhausted, InvalidRequest
from specsplit.model.heads.config import architecture
from specsplit.text.json_file import read_json
from specsplit.text.tokenizer import Tokenizer
from specsplit.training.examples import read_examples
from specsplit.training.lessons import Lessons, Sample, bytes_on_disk
from specsplit.training.meter import Metering
from specsplit.training.order import HeadOrder
from specsplit.training.prompts import Prompt, Prompts, make_prompts
from specsplit.training.teacher import Task, Teacher

_HELD_OUT_ONE_IN: Final = 20
_APART: Final = 1_000_003
"""Between the seeds of the texts of one run and those of another."""


def prompts_of(order: HeadOrder) -> Prompts:
    """What is put before the target. Raises InvalidRequest if too little is left of the data."""
    tokenizer = Tokenizer.load(order.target)
    ends: object = _config(order).eos_token_id
    end = ends[0] if isinstance(ends, list) else ends
    made = make_prompts(
        read_examples(order.data),
        tokenizer,
        longest_text(order),
        end=end if isinstance(end, int) else None,
        as_written=order.as_written,
    )
    if len(made.prompts) < 2:
        raise InvalidRequest(
            "--data",
            f"holds {len(made.prompts)} usable texts ({left_out(made, order) or 'nothing was left out'}); expected at least 2, of which "
            "one is held out",
        )
    return made


def longest_text(order: HeadOrder) -> int:
    """Return how many tokens a text has at most: what was asked for, or the target's context if that is shorter."""
    return min(order.max_length, getattr(_config(order), "max_position_embeddings", None) or order.max_length)


def _config(order: HeadOrder) -> PretrainedConfig:
    return architecture(read_json(order.target / "config.json"))


def left_out(made: Prompts, order: HeadOrder) -> str:
    """What was left out of the data, in a sentence; empty: nothing."""
    found = [
        f"{made.too_long:,} prompts are too long for texts of {longest_text(order):,} tokens (--max-length) and are left out"
        * bool(made.too_long),
        f"{made.cut:,} answers are cut there" * bool(made.cut),
        f"{made.too_short:,} texts or ends of texts have too few tokens" * bool(made.too_short),
    ]
    said = "; ".join(each for each in found if each)
    return f"{said}." if said else ""


def count_of(order: HeadOrder, made: Prompts) -> tuple[int, int]:
    """Return how many texts there will be, and how many of these are held out. Raises InvalidRequest if that is all of them."""
    count = min(len(made.prompts), order.samples or len(made.prompts))
    held_out = max(1, count // _HELD_OUT_ONE_IN) if order.held_out is None else order.held_out
    if held_out >= count:
        raise InvalidRequest("--held-out", f"is {held_out} of {count} texts in all; expected fewer")
    return count, held_out


def teach(
    order: HeadOrder, prompts: tuple[Prompt, ...], lessons: Lessons, layers: tuple[int, ...], metering: Metering
) -> None:
    """Have the target write what is missing, and read what it has not read; `layers`: the hidden states that are kept.

    Raises LoadError if the target cannot be loaded, and Exhausted if there is no room on the disk.
    """
    indices = range(lessons.held_out.stop)
    if all(index in lessons and lessons.was_read(index) for index in indices):
        return
    chosen = [prompts[number] for number in np.random.default_rng(order.seed).permutation(len(prompts))[: len(indices)]]
    most = longest_text(order)
    longest = max(min(len(each.tokens) + max(len(each.answer), order.max_new_tokens), most) for each in chosen)
    teacher = Teacher.load(order.target, longest=longest, dtype=order.dtype, device=order.device)
    _write(order, chosen, lessons, teacher, metering)
    _require_room(lessons, layers, order)
    with metering("texts that the target reads") as meter:
        for done, index in enumerate(indices, 1):
            if not lessons.was_read(index):
                lessons.keep(index, teacher.read(lessons.text(index).tokens, layers))
            meter(done, len(indices))


def _write(order: HeadOrder, chosen: Sequence[Prompt], lessons: Lessons, teacher: Teacher, metering: Metering) -> None:
    """Have the target write the answers that are missing, each at most as long as there is room for."""
    tasks: list[Task] = []
    most = longest_text(order)
    for index, prompt in enumerate(chosen):
        if index in lessons:
            continue
        if prompt.answer:
            lessons.add(Sample(index, (*prompt.tokens, *prompt.answer), len(prompt.tokens)))
            continue
        room = min(order.max_new_tokens, most - len(prompt.tokens))
        temperature = 0.0 if index in lessons.held_out else order.temperature
        tasks.append(Task(index, prompt.tokens, room, temperature, order.seed * _APART + index))
    if tasks:
        with metering("texts that the target writes") as meter:
            for done, (task, written) in enumerate(teacher.write(tasks), len(chosen) - len(tasks) + 1):
                lessons.add(Sample(task.index, (*task.prompt, *written), len(task.prompt)))
                meter(done, len(chosen))
    lessons.sort()


def _require_room(lessons: Lessons, layers: tuple[int, ...], order: HeadOrder) -> None:
    """Raise Exhausted if the hidden states do not fit on the disk."""
    missing = [lessons.text(index) for index in range(lessons.held_out.stop) if not lessons.was_read(index)]
    wanted, free = (
        bytes_on_disk(missing, len(layers), _config(order).hidden_size),
        shutil.disk_usage(lessons.folder).free,
    )
    if wanted > free:
        raise Exhausted(
            f"hidden states of {len(missing):,} texts take {wanted / 1e9:.1f} GB, and {lessons.folder} has {free / 1e9:.1f} GB free; "
            "take fewer (--samples) or shorter ones (--max-new-tokens), or another --out, and repeat"
        )
