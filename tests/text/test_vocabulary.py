"""The vocabulary of a folder is a value that two services can compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specsplit.errors import LoadError
from specsplit.text.vocabulary import vocabulary_of


def write_folder(folder: Path, config: dict[str, Any], tokenizer: dict[str, Any] | None) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def table(vocab: Any, added: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"model": {"vocab": vocab}, "added_tokens": added or []}


def test_size_is_the_models_and_digest_is_the_tables(tmp_path: Path) -> None:
    found = vocabulary_of(write_folder(tmp_path / "a", {"vocab_size": 8}, table({"x": 0, "y": 1})))
    assert found.size == 8
    assert len(found.digest) == 64


def test_the_order_of_the_file_does_not_change_the_digest(tmp_path: Path) -> None:
    one = vocabulary_of(
        write_folder(tmp_path / "a", {"vocab_size": 3}, table({"x": 0, "y": 1}, [{"id": 2, "content": "<e>"}]))
    )
    two = vocabulary_of(write_folder(tmp_path / "b", {"vocab_size": 3}, table({"y": 1, "x": 0, "<e>": 2})))
    assert one == two
    assert one.fits(two)


def test_another_table_has_another_digest(tmp_path: Path) -> None:
    one = vocabulary_of(write_folder(tmp_path / "a", {"vocab_size": 2}, table({"x": 0, "y": 1})))
    two = vocabulary_of(write_folder(tmp_path / "b", {"vocab_size": 2}, table({"x": 1, "y": 0})))
    assert not one.fits(two)


def test_a_unigram_table_reads_like_the_same_dictionary(tmp_path: Path) -> None:
    one = vocabulary_of(write_folder(tmp_path / "a", {"vocab_size": 2}, table([["x", -1.5], ["y", -2.0]])))
    two = vocabulary_of(write_folder(tmp_path / "b", {"vocab_size": 2}, table({"x": 0, "y": 1})))
    assert one == two


def test_without_a_tokenizer_the_digest_is_empty_and_fits_any_of_that_size(tmp_path: Path) -> None:
    bare = vocabulary_of(write_folder(tmp_path / "a", {"vocab_size": 2}, None))
    full = vocabulary_of(write_folder(tmp_path / "b", {"vocab_size": 2}, table({"x": 0, "y": 1})))
    assert bare.digest == ""
    assert bare.fits(full)


def test_a_multimodal_config_keeps_the_size_one_level_down(tmp_path: Path) -> None:
    assert vocabulary_of(write_folder(tmp_path / "a", {"text_config": {"vocab_size": 5}}, None)).size == 5


@pytest.mark.parametrize(
    ("config", "tokenizer", "named"),
    [
        ({}, None, "vocab_size"),
        ({"vocab_size": 0}, None, "vocab_size"),
        ({"vocab_size": 2}, {"model": {}}, "tokenizer.json"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, config: dict[str, Any], tokenizer: dict[str, Any] | None, named: str
) -> None:
    with pytest.raises(LoadError, match=named):
        vocabulary_of(write_folder(tmp_path / "a", config, tokenizer))


def test_a_missing_folder_a_missing_config_and_a_broken_one_are_load_errors(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="does not exist"):
        vocabulary_of(tmp_path / "nothing")
    with pytest.raises(LoadError, match=r"config\.json does not exist"):
        vocabulary_of(tmp_path)
    for broken in ("{", '{"a": ' * 100_000, '{"vocab_size": ' + "9" * 5_000 + "}"):
        (tmp_path / "config.json").write_text(broken)
        with pytest.raises(LoadError, match="cannot be read"):
            vocabulary_of(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(LoadError, match="JSON object"):
        vocabulary_of(tmp_path)
