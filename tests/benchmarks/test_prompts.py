"""Prompts are the same on every machine, and no pocket model was trained on them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from benchmarks.prompts import CORPUS, documents, held_out

TARGET = Path(__file__).resolve().parents[2] / "models" / "pocket" / "target"


def test_every_file_of_the_corpus_is_held_out_by_its_path() -> None:
    assert len(documents()) == 22
    assert all(document.held_out for document in documents())


def test_the_text_is_the_pinned_one_and_its_licence_is_beside_it() -> None:
    everything = "".join(document.name + document.text for document in documents())
    assert hashlib.sha256(everything.encode()).hexdigest().startswith("748881de689655c1")
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in (CORPUS / "LICENSE").read_text()


def test_prompts_are_windows_spread_over_the_corpus() -> None:
    prompts = held_out(TARGET, 64, 4)
    assert prompts.shape == (4, 64)
    assert len({tuple(prompt) for prompt in prompts.tolist()}) == 4
    with pytest.raises(ValueError, match=r"only .* windows of 512 tokens, 1000 wanted"):
        held_out(TARGET, 512, 1000)
