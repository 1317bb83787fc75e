"""Prompts from files that the pocket models were never trained on. They are kept here: every Python has others."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from torch import Tensor

from scripts.pocket import vocabulary
from scripts.pocket.corpus import Document
from scripts.pocket.measure import held_out_windows

CORPUS = Path(__file__).resolve().parent / "corpus"


@cache
def documents() -> list[Document]:
    """The files of the corpus, in order of their paths."""
    return [
        Document(file.relative_to(CORPUS).as_posix().removesuffix(".txt"), file.read_text(encoding="utf-8"))
        for file in sorted(CORPUS.rglob("*.py.txt"))
    ]


def held_out(model: Path, width: int, count: int) -> Tensor:
    """`count` windows of held-out files, spread evenly, in the tokens of the model in folder `model`: int64 [count, width]."""
    rows = held_out_windows(vocabulary.encode(vocabulary.load(model), documents()), width, count)
    if len(rows) < count:
        raise ValueError(f"the held-out files have only {len(rows)} windows of {width} tokens, {count} wanted")
    return rows
