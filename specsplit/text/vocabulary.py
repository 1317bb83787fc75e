"""What the token ids of a model folder mean, as a value that two services can compare without shipping the table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from specsplit.errors import LoadError
from specsplit.text.embeddings import embedding_rows
from specsplit.text.json_file import read_json
from specsplit.text.tokenizer_file import file_of, tokenizer_facts
from specsplit.values import Vocabulary


def vocabulary_of(folder: Path) -> Vocabulary:
    """Size from config.json, or from the embeddings; digest from tokenizer.json, or from what it would be made of (empty without either).

    The digest is SHA-256 over the sorted (id, text) pairs of the model's table and the added tokens, so it does not depend on how
    the file was written. Raises LoadError if the folder or its config.json is missing or cannot be read.
    """
    if not folder.is_dir():
        raise LoadError(f"model folder {folder} does not exist")
    return Vocabulary(_size(folder), _digest(folder))


def _size(folder: Path) -> int:
    """The text model's vocab_size, or else the config's own, or else the rows of the embeddings, where both leave it to a default."""
    path = folder / "config.json"
    config = read_json(path)
    inner: object = config.get("text_config")  # models that also see or hear keep the decoder's facts one level down
    size: object = cast("dict[str, object]", inner).get("vocab_size") if isinstance(inner, dict) else None
    if size is None:
        size = config.get("vocab_size")
    if size is None:
        size = embedding_rows(folder)
    if not isinstance(size, int) or size < 1:
        raise LoadError(
            f"{path} has no usable vocab_size (found {size!r}), nor are there embeddings whose rows could be counted"
        )
    return size


def _digest(folder: Path) -> str:
    content = tokenizer_facts(folder, merges=False)
    if content is None:
        return ""
    try:
        added = cast("list[dict[str, Any]]", content.get("added_tokens") or [])
        pairs = sorted(
            {*_model_pairs(content["model"]["vocab"]), *((int(token["id"]), str(token["content"])) for token in added)}
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LoadError(f"{file_of(folder)} has no table of tokens specsplit can read: {error!r}") from error
    return hashlib.sha256(json.dumps(pairs, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()


def _model_pairs(vocab: Any) -> Iterator[tuple[int, str]]:
    """(id, text) of a text-to-id table (BPE, WordPiece) or of a list of [text, score] in id order (Unigram)."""
    if isinstance(vocab, dict):
        for text, token in cast("dict[str, Any]", vocab).items():
            yield int(token), text
    else:
        for token, entry in enumerate(cast("list[list[Any]]", vocab)):
            yield token, str(entry[0])
