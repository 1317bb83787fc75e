"""The zip that a gateway makes its tokenizer of."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from functools import partial
from pathlib import Path

import pytest
import tokenizers

from specsplit.errors import LoadError
from specsplit.generation.on_demand import OnDemand
from specsplit.vllm_engine.tokenizer_archive import archive_of
from tests.support.toys import write_byte_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "notes.txt").write_text("not for everybody")
    (tmp_path / "more.jinja").mkdir()
    return tmp_path


def names(data: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


def test_it_holds_what_a_tokenizer_is_made_of_and_nothing_else(folder: Path) -> None:
    archive = archive_of(folder)
    assert names(archive.data) == ["chat_template.jinja", "config.json", "tokenizer.json", "tokenizer_config.json"]
    assert archive.sha256 == hashlib.sha256(archive.data).hexdigest()
    inside = zipfile.ZipFile(io.BytesIO(archive.data)).read("tokenizer.json")
    assert inside == (folder / "tokenizer.json").read_bytes()


def test_the_same_files_make_the_same_archive_whenever_they_were_written(folder: Path) -> None:
    before = archive_of(folder)
    for path in folder.iterdir():
        path.touch()
    assert archive_of(folder) == before


def test_a_folder_of_another_tokenizer_gets_a_tokenizer_json(tmp_path: Path) -> None:
    tekken = {
        "config": {
            "pattern": "[a-z]+|.", "num_vocab_tokens": 300, "default_vocab_size": 258, "default_num_special_tokens": 2, "version": "v3",
        },
        "vocab": [
            *({"rank": byte, "token_bytes": encoded(bytes([byte])), "token_str": None} for byte in range(256)),
        ],
        "special_tokens": [{"rank": 0, "token_str": "<unk>", "is_control": True}, {"rank": 1, "token_str": "<s>", "is_control": True}],
    }  # fmt: skip
    (tmp_path / "tekken.json").write_text(json.dumps(tekken))
    data = archive_of(tmp_path).data
    assert names(data) == ["tekken.json", "tokenizer.json"]
    made = tokenizers.Tokenizer.from_str(zipfile.ZipFile(io.BytesIO(data)).read("tokenizer.json").decode())
    assert made.decode(made.encode("abc", add_special_tokens=False).ids) == "abc"


def encoded(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


async def test_it_is_made_once_and_again_after_a_failure(folder: Path) -> None:
    archive = OnDemand(partial(archive_of, folder))
    written = (folder / "config.json").read_bytes()
    (folder / "config.json").unlink()
    (folder / "tokenizer.json").rename(folder / "tekken.json")
    (folder / "tekken.json").write_text("{")
    with pytest.raises(LoadError, match=r"tekken\.json cannot be read"):
        await archive.get()
    assert archive.made is None
    write_byte_tokenizer(folder)
    (folder / "config.json").write_bytes(written)
    made = await archive.get()
    (folder / "config.json").unlink()
    assert await archive.get() is archive.made is made
