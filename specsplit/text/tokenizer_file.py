"""The file of a model folder that says what its tokens are: tokenizer.json, or another that one can be made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from specsplit.errors import LoadError
from specsplit.text.json_file import read_json
from specsplit.text.tekken import from_tekken

TOKENIZER: Final = "tokenizer.json"
TEKKEN: Final = "tekken.json"
_OTHERS: Final = ("tokenizer.model", "tiktoken.model", "vocab.json", "vocab.txt", "spiece.model")
"""Files of tokenizers that transformers can make a tokenizer.json of."""


def tokenizer_facts(folder: Path, *, merges: bool = True) -> dict[str, Any] | None:
    """What tokenizer.json holds, or would hold if it were made of the tekken.json that lies there; None: neither is there.

    merges: whether the merges are wanted, where they have to be made. Raises LoadError, naming the file, if it cannot be read.
    """
    path = file_of(folder)
    if not path.exists():
        return None
    content = read_json(path)
    return from_tekken(path, content, merges=merges) if path.name == TEKKEN else content


def file_of(folder: Path) -> Path:
    """The file that a folder's tokens are read from: its tokenizer.json, or its tekken.json where it has none."""
    tekken = folder / TEKKEN
    return tekken if tekken.exists() and not (folder / TOKENIZER).exists() else folder / TOKENIZER


def missing(folder: Path) -> LoadError:
    """What to say of a folder without a tokenizer that can be read, and what to do."""
    found = [name for name in _OTHERS if (folder / name).exists()]
    if not found:
        return LoadError(f"model folder {folder} has no tokenizer: expected {TOKENIZER} or {TEKKEN}")
    convert = f"from transformers import AutoTokenizer as T; T.from_pretrained('{folder}').save_pretrained('{folder}')"
    return LoadError(
        f"model folder {folder} has {' and '.join(found)}, and no {TOKENIZER}, which is what is read: make one, where transformers, "
        f'sentencepiece and tiktoken are installed, with: python -c "{convert}"'
    )
