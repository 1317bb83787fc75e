"""What a head learns from, on disk: texts, and the target's hidden states along them, in the layout that speculators' trainer reads.

    texts.jsonl                          one line per text: {"index", "tokens", "answer"}
    hidden_states/hs_{index}.safetensors token_ids [T], hidden_states [T, layers, H], chosen [T]

Texts that are learnt from have the first indices, held-out ones the last. Every text is written once, whole, so a run that was killed
goes on behind those that are there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from specsplit.training.prompts import Tokens
from specsplit.training.teacher import Reading

TEXTS: Final = "texts.jsonl"
HIDDEN: Final = "hidden_states"


@dataclass(frozen=True)
class Sample:
    """Tokens of which those from `answer` on are learnt."""

    index: int
    tokens: Tokens
    answer: int
    """Index of the first token that is learnt; at least 1."""


@dataclass(frozen=True)
class Lesson:
    """A text as the target read it, T tokens."""

    text: Sample
    hidden: Tensor
    """[T, layers, H]"""
    chosen: Tensor
    """[T] int64: the token that the target takes for the likeliest behind each."""


class Lessons:
    """The lessons in one folder."""

    def __init__(self, folder: Path, count: int, held_out: int) -> None:
        """`count` texts in all, the last `held_out` of which are not learnt from. Makes the folder."""
        self.folder: Final = folder
        self.learnt: Final = range(count - held_out)
        self.held_out: Final = range(count - held_out, count)
        (folder / HIDDEN).mkdir(parents=True, exist_ok=True)
        self._texts: Final = {text.index: text for text in _read_texts(folder / TEXTS)}
        self._rewrite()

    def __contains__(self, index: int) -> bool:
        """Whether a text is there."""
        return index in self._texts

    def text(self, index: int) -> Sample:
        """A text that is there."""
        return self._texts[index]

    def add(self, text: Sample) -> None:
        """Keep a text."""
        with (self.folder / TEXTS).open("a", encoding="utf-8") as file:
            file.write(_line(text))
        self._texts[text.index] = text

    def sort(self) -> None:
        """Write all texts in order of their indices, as the trainer reads them."""
        self._rewrite()

    def was_read(self, index: int) -> bool:
        """Whether the target's reading of a text is there, of all its tokens."""
        path = self._path(index)
        if not path.exists():
            return False
        try:
            with safe_open(path, framework="pt") as opened:
                return opened.get_slice("token_ids").get_shape() == [len(self._texts[index].tokens)]
        except SafetensorError:
            return False

    def keep(self, index: int, reading: Reading) -> None:
        """Keep a reading. Hidden states in float32 are rounded to bfloat16, as heads are trained."""
        hidden = reading.hidden
        tensors = {
            "token_ids": torch.tensor(self._texts[index].tokens),
            "hidden_states": (hidden.bfloat16() if hidden.dtype == torch.float32 else hidden).contiguous(),
            "chosen": reading.chosen,
        }
        path = self._path(index)
        unfinished = path.with_suffix(".new")
        save_file(tensors, unfinished)
        os.replace(unfinished, path)

    def lesson(self, index: int) -> Lesson:
        """A text and its reading, in float32."""
        tensors = load_file(self._path(index))
        return Lesson(self._texts[index], tensors["hidden_states"].float(), tensors["chosen"])

    def _path(self, index: int) -> Path:
        return self.folder / HIDDEN / f"hs_{index}.safetensors"

    def _rewrite(self) -> None:
        unfinished = self.folder / f"{TEXTS}.new"
        unfinished.write_text("".join(_line(self._texts[index]) for index in sorted(self._texts)), encoding="utf-8")
        os.replace(unfinished, self.folder / TEXTS)


def bytes_on_disk(texts: Sequence[Sample], layers: int, hidden_size: int) -> int:
    """Bytes that readings of texts take on disk."""
    return sum(len(text.tokens) for text in texts) * (layers * hidden_size * 2 + 16)


def _line(text: Sample) -> str:
    return json.dumps({"index": text.index, "tokens": text.tokens, "answer": text.answer}) + "\n"


def _read_texts(file: Path) -> Iterator[Sample]:
    """Texts that were written whole: the last line of a run that was killed may not be."""
    if not file.exists():
        return
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            facts = json.loads(line)
            yield Sample(facts["index"], tuple(facts["tokens"]), facts["answer"])
