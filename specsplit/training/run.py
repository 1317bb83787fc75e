"""A head for a target, from files of text to a folder that is served: `train_head`.

1. The order is compared with what the out folder holds: nothing, or an unfinished run of the same order, which is gone on with.
2. Files become prompts (`examples`, `prompts`); the target writes answers to them (`teacher`).
3. The target reads all texts, and its hidden states are kept (`lessons`).
4. The head learns: by the trainer of speculators (`trainer`) or by own code (`own`).
5. The head is measured on the held-out texts (`figures`), and a card is written beside it (`card`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import safe_open

from specsplit.errors import Exhausted, InvalidRequest
from specsplit.features import LAST
from specsplit.model.heads import load_head
from specsplit.model.heads.config import architecture, usual_layers
from specsplit.text.json_file import read_json
from specsplit.text.tokenizer import Tokenizer
from specsplit.training import own
from specsplit.training.card import Record, card
from specsplit.training.examples import read_examples
from specsplit.training.figures import Figures, measure
from specsplit.training.lessons import Lessons, Text, bytes_on_disk
from specsplit.training.order import WITH_TRAINER, HeadOrder
from specsplit.training.progress import metering
from specsplit.training.prompts import Prompt, Prompts, make_prompts
from specsplit.training.published import publish_checkpoint
from specsplit.training.teacher import Task, Teacher
from specsplit.training.trainer import Trainer

WORK: Final = "training"
"""The subfolder of an unfinished run."""
_ORDER: Final = "order.json"
_MOST_TOKENS: Final = 32_000
"""Tokens that a head proposes, where nobody says how many: as many as published heads have."""
_HELD_OUT_ONE_IN: Final = 20
Say = Callable[[str], None]


def train_head(order: HeadOrder, say: Say) -> Figures:
    """Train a head as ordered; `say` is told in a line each what is done. Raises SpecsplitError, saying what to do, if it cannot be."""
    trainer = Trainer.find(order.trainer, order.target) if order.kind in WITH_TRAINER else None
    work = _open(order, say)
    layers = _layers(order)
    made = _prompts(order)
    left_out = _left_out(made, order)
    if left_out:
        say(left_out)
    lessons = _lessons(order, made.prompts, work)
    _teach(order, made.prompts, lessons, (*layers, _depth_of(order)) if trainer else layers)
    if trainer is None:
        with metering("training") as meter:
            steps = own.train(order, lessons, order.out, meter)
        by = "its own code"
    else:
        steps = _train_elsewhere(order, trainer, lessons, layers)
        by = f"the trainer of speculators {trainer.versions['speculators']}"
    figures = _measure(order, lessons)
    answers = [len(text.tokens) - text.answer for text in map(lessons.text, lessons.learnt)]
    record = Record(
        order=order,
        by=by,
        steps=steps,
        learnt=len(lessons.learnt),
        tokens=sum(len(lessons.text(index).tokens) for index in lessons.learnt),
        answers=sum(answers),
        left_out=left_out,
        layers=layers,
        parameters=_parameters(order.out),
        figures=figures,
    )
    (order.out / "README.md").write_text(card(record), encoding="utf-8")
    shutil.rmtree(work)
    return figures


def _open(order: HeadOrder, say: Say) -> Path:
    """The work folder, made or found. Raises InvalidRequest if the out folder holds anything but an unfinished run of this order."""
    work, said = order.out / WORK, _said(order)
    if not order.out.exists() or (order.out.is_dir() and not any(order.out.iterdir())):
        work.mkdir(parents=True)
        (work / _ORDER).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
        return work
    if not (work / _ORDER).is_file():
        raise InvalidRequest(
            "--out", f"{order.out} is there already and holds no unfinished run; name a folder that is new or empty"
        )
    before = read_json(work / _ORDER)
    if before != said:
        changed = ", ".join(
            f"{name} was {before.get(name)!r} and is {said.get(name)!r}"
            for name in sorted({*before, *said})
            if before.get(name) != said.get(name)
        )
        raise InvalidRequest(
            "--out",
            f"{order.out} holds an unfinished run of something else ({changed}); repeat that, name another folder, or remove it",
        )
    say(f"going on with the run in {order.out}")
    return work


def _said(order: HeadOrder) -> dict[str, Any]:
    """Everything that the result depends on, as JSON has it."""
    weights = sorted(
        (each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in order.target.glob("*.safetensors")
    )
    facts: dict[str, Any] = {
        **asdict(order),
        "target": [str(order.target.resolve()), weights, _digest(order.target / "config.json")],
        "data": [_digest(file) for file in order.data],
    }
    for name in ("out", "trainer"):
        del facts[name]
    return json.loads(json.dumps(facts))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _depth_of(order: HeadOrder) -> int:
    """Decoder layers of the target."""
    return architecture(read_json(order.target / "config.json")).num_hidden_layers


def _layers(order: HeadOrder) -> tuple[int, ...]:
    """The hidden states that the head reads. Raises InvalidRequest if the target does not have them."""
    if order.kind not in WITH_TRAINER:
        return (LAST,)
    depth = _depth_of(order)
    layers = order.layers or usual_layers(depth)
    if len(set(layers)) < len(layers) or min(layers) < 0 or max(layers) > depth:
        raise InvalidRequest(
            "--layers",
            f"{', '.join(map(str, layers))} of a target of {depth} layers; expected different ones from 0 to {depth}",
        )
    return layers


def _prompts(order: HeadOrder) -> Prompts:
    """What is put before the target. Raises InvalidRequest if too little is left of the data."""
    tokenizer, config = Tokenizer.load(order.target), architecture(read_json(order.target / "config.json"))
    longest = min(order.max_length, getattr(config, "max_position_embeddings", None) or order.max_length)
    ends: object = config.eos_token_id
    end = ends[0] if isinstance(ends, list) else ends
    made = make_prompts(
        read_examples(order.data),
        tokenizer,
        longest,
        end=end if isinstance(end, int) else None,
        as_written=order.as_written,
    )
    if len(made.prompts) < 2:
        raise InvalidRequest(
            "--data",
            f"holds {len(made.prompts)} usable texts ({_left_out(made, order) or 'nothing was left out'}); expected at least 2, of which "
            "one is held out",
        )
    return made


def _left_out(made: Prompts, order: HeadOrder) -> str:
    """What was left out of the data, in a sentence; empty: nothing."""
    found = [
        f"{made.too_long:,} prompts are too long for texts of {order.max_length:,} tokens (--max-length) and are left out"
        * bool(made.too_long),
        f"{made.cut:,} answers are cut there" * bool(made.cut),
        f"{made.too_short:,} texts or ends of texts have too few tokens" * bool(made.too_short),
    ]
    said = "; ".join(each for each in found if each)
    return f"{said}." if said else ""


def _lessons(order: HeadOrder, prompts: tuple[Prompt, ...], work: Path) -> Lessons:
    count = min(len(prompts), order.samples or len(prompts))
    held_out = max(1, count // _HELD_OUT_ONE_IN) if order.held_out is None else order.held_out
    if held_out >= count:
        raise InvalidRequest("--held-out", f"is {held_out} of {count} texts in all; expected fewer")
    return Lessons(work, count, held_out)


def _teach(order: HeadOrder, prompts: tuple[Prompt, ...], lessons: Lessons, layers: tuple[int, ...]) -> None:
    """Have the target write what is missing, and read what it has not read."""
    count = len(lessons.learnt) + len(lessons.held_out)
    chosen = [prompts[number] for number in np.random.default_rng(order.seed).permutation(len(prompts))[:count]]
    indices = range(count)
    if all(index in lessons and lessons.was_read(index) for index in indices):
        return
    longest = max(
        min(len(each.tokens) + max(len(each.answer), order.max_new_tokens), order.max_length) for each in chosen
    )
    teacher = Teacher.load(order.target, longest=longest, dtype=order.dtype, device=order.device)
    missing = [index for index in indices if index not in lessons]
    tasks: list[Task] = []
    for index in missing:
        prompt = chosen[index]
        if prompt.answer:
            lessons.add(Text(index, (*prompt.tokens, *prompt.answer), len(prompt.tokens)))
        else:
            room = min(order.max_new_tokens, longest - len(prompt.tokens))
            temperature = 0.0 if index in lessons.held_out else order.temperature
            tasks.append(Task(index, prompt.tokens, room, temperature, order.seed * 1_000_003 + index))
    if tasks:
        with metering("texts that the target writes") as meter:
            for done, (task, written) in enumerate(teacher.write(tasks), count - len(tasks) + 1):
                lessons.add(Text(task.index, (*task.prompt, *written), len(task.prompt)))
                meter(done, count)
    lessons.sort()
    _require_room(lessons, layers, order)
    with metering("texts that the target reads") as meter:
        for done, index in enumerate(indices, 1):
            if not lessons.was_read(index):
                lessons.keep(index, teacher.read(lessons.text(index).tokens, layers))
            meter(done, count)


def _require_room(lessons: Lessons, layers: tuple[int, ...], order: HeadOrder) -> None:
    """Raise Exhausted if the hidden states do not fit on the disk."""
    config = architecture(read_json(order.target / "config.json"))
    missing = [lessons.text(index) for index in range(lessons.held_out.stop) if not lessons.was_read(index)]
    wanted, free = bytes_on_disk(missing, len(layers), config.hidden_size), shutil.disk_usage(lessons.folder).free
    if wanted > free:
        raise Exhausted(
            f"hidden states of {len(missing):,} texts take {wanted / 1e9:.1f} GB, and {lessons.folder} has {free / 1e9:.1f} GB free; "
            "take fewer (--samples) or shorter ones (--max-new-tokens), or another --out, and repeat"
        )


def _train_elsewhere(order: HeadOrder, trainer: Trainer, lessons: Lessons, layers: tuple[int, ...]) -> int:
    """Have the trainer of speculators train, and publish what it made -> steps."""
    vocabulary = architecture(read_json(order.target / "config.json")).vocab_size
    drafted = min(order.draft_vocab or _MOST_TOKENS, vocabulary)
    longest = max(len(lessons.text(index).tokens) for index in range(lessons.held_out.stop))
    options: dict[str, Any] = {
        "verifier-name-or-path": order.target.resolve(),
        "speculator-type": order.kind.value,
        "target-layer-ids": layers,
        "full-attention-indices": 0,
        "mask-token-id": 0,
        "ttt-steps": order.depth,
        "epochs": order.epochs,
        "lr": order.learning_rate,
        "total-seq-len": max(order.batch_tokens, longest),
        "train-data-ratio": (len(lessons.learnt) + 0.5) / lessons.held_out.stop,
        "checkpoint-freq": 0.25,
        "num-workers": 0,
        "seed": order.seed,
        **({"draft-vocab-size": drafted} if drafted < vocabulary else {}),
    }
    with metering("training") as meter:
        checkpoint, steps = trainer.train(lessons, options, meter)
    publish_checkpoint(checkpoint, order.target, order.out)
    return steps


def _measure(order: HeadOrder, lessons: Lessons) -> Figures:
    head = load_head(order.out, order.target, order.kind)
    with metering("held-out texts") as meter:
        return measure(head, map(lessons.lesson, lessons.held_out), order.depth, meter, len(lessons.held_out))


def _parameters(folder: Path) -> int:
    with safe_open(folder / "model.safetensors", framework="pt") as opened:
        return sum(int(np.prod(opened.get_slice(name).get_shape())) for name in opened.keys() if name != "d2t")  # noqa: SIM118
