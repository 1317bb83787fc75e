"""The file of a model folder that says what its tokens are: tokenizer.json, or another that one can be made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from specsplit.errors import LoadError
from specsplit.text.json_file import read_json
from specsplit.text.sentencepiece import CLASSES, from_sentencepiece, read_config
from specsplit.text.tekken import from_tekken

TOKENIZER: Final = "tokenizer.json"
TEKKEN: Final = "tekken.json"
_SENTENCEPIECE: Final = "tokenizer.model"
_OTHERS: Final = (_SENTENCEPIECE, "tiktoken.model", "vocab.json", "vocab.txt", "spiece.model")
"""Files of tokenizers that transformers can make a tokenizer.json of."""


def tokenizer_facts(folder: Path, *, merges: bool = True) -> dict[str, Any] | None:
    """What tokenizer.json holds, or would hold if it were made of what `file_of` names in its place; None: nothing is there.

    merges: whether the merges are wanted, where they have to be made. Raises LoadError, naming the file, if it cannot be read.
    """
    path = file_of(folder)
    if not path.exists():
        return None
    if path.name == _SENTENCEPIECE:
        return from_sentencepiece(path, read_config(folder), merges=merges)
    content = read_json(path)
    return from_tekken(path, content, merges=merges) if path.name == TEKKEN else content


def file_of(folder: Path) -> Path:
    """The file that a folder's tokens are read from: tokenizer.json, or else tekken.json, or else the tokenizer.model of a Llama."""
    readable = (
        TOKENIZER,
        TEKKEN,
        *((_SENTENCEPIECE,) if read_config(folder).get("tokenizer_class") in CLASSES else ()),
    )
    return folder / next((name for name in readable if (folder / name).exists()), TOKENIZER)


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
