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
    for outer in ({}, {"vocab_size": 7}):
        folder = write_folder(tmp_path / str(len(outer)), {"text_config": {"vocab_size": 5}, **outer}, None)
        assert vocabulary_of(folder).size == 5


def weights(path: Path, **tensors: list[int]) -> None:
    """Write a safetensors file with the header of tensors of these shapes, and none of their numbers."""
    header = json.dumps(
        {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in tensors.items()}
    )
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())


@pytest.mark.parametrize("config", [{}, {"text_config": {"hidden_size": 4}}])
def test_a_config_that_leaves_the_size_to_a_default_has_its_embeddings_counted(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    """Gemma 3's own says the sizes that are not the usual ones."""
    folder = write_folder(tmp_path / "a", config, None)
    weights(folder / "model-00001-of-00002.safetensors", **{"vision_tower.patch_embedding.weight": [9, 9]})
    weights(folder / "model-00002-of-00002.safetensors", **{"language_model.model.embed_tokens.weight": [6, 4]})
    assert vocabulary_of(folder).size == 6
    weights(folder / "other.safetensors", **{"model.embed_tokens.weight": [8, 4]})
    (folder / "broken.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(
        LoadError, match=r"config\.json has no usable vocab_size \(found None\), nor are there embeddings"
    ):
        vocabulary_of(folder)


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
