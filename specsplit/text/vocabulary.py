"""What the token ids of a model folder mean, as a value that two services can compare without shipping the table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from specsplit.errors import LoadError
from specsplit.text.json_file import read_json
from specsplit.text.tokenizer_file import file_of, tokenizer_facts
from specsplit.values import Vocabulary


def vocabulary_of(folder: Path) -> Vocabulary:
    """Size from config.json, digest from tokenizer.json, or from what it would be made of (empty where the folder has neither).

    The digest is SHA-256 over the sorted (id, text) pairs of the model's table and the added tokens, so it does not depend on how
    the file was written. Raises LoadError if the folder or its config.json is missing or cannot be read.
    """
    if not folder.is_dir():
        raise LoadError(f"model folder {folder} does not exist")
    return Vocabulary(_size(folder / "config.json"), _digest(folder))


def _size(config_path: Path) -> int:
    config = read_json(config_path)
    size: object = config.get("vocab_size")
    text_config: object = config.get("text_config")
    if size is None and isinstance(
        text_config, dict
    ):  # models that also see or hear keep the decoder's facts one level down
        size = cast("dict[str, object]", text_config).get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise LoadError(f"{config_path} has no usable vocab_size (found {size!r})")
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
