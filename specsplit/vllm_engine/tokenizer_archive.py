"""The files of a tokenizer as a zip, for gateways that have no model folder of their own."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specsplit.errors import LoadError
from specsplit.text.tokenizer_file import TOKENIZER, tokenizer_facts

_NAMES: Final = (
    TOKENIZER,
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tekken.json",
    "chat_template.json",
)
_SUFFIXES: Final = (".jinja", ".model", ".tiktoken")
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every file, so that the same files make the same archive."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip, and its digest."""

    data: bytes
    sha256: str
    """In hex."""


def archive_of(folder: Path) -> Archive:
    """Make the archive of a model folder. Where the folder has no tokenizer.json, one is made of what its tokens are read from.

    Raises LoadError, naming the file, if one cannot be read.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _files(folder):
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), content, zipfile.ZIP_DEFLATED)
    data = buffer.getvalue()
    return Archive(data, hashlib.sha256(data).hexdigest())


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents, by name."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and (path.name in _NAMES or path.suffix in _SUFFIXES):
            try:
                yield path.name, path.read_bytes()
            except OSError as error:
                raise LoadError(f"{path} cannot be read: {error}") from error
    if not (folder / TOKENIZER).exists() and (facts := tokenizer_facts(folder)) is not None:
        yield TOKENIZER, json.dumps(facts).encode()
