"""Mistral's tekken.json as the tokenizer.json that transformers makes of it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

from specsplit.errors import LoadError
from specsplit.text.byte_level import merges_of, spelt

SPECIAL_TOKENS: Final = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
"""The names of special tokens, which Mistral's files do not say."""


def from_tekken(path: Path, content: dict[str, Any], *, merges: bool) -> dict[str, Any]:
    """The object that a tokenizer.json would hold. merges: whether with the merges, which take a second or two to find.

    Raises LoadError, naming the file, if it is no tekken.json, or one of the first, which names no special tokens.
    """
    try:
        special = _special_tokens(content)
        count = content["config"].get("default_vocab_size")
        entries = content["vocab"][: None if count is None else count - len(special)]
        ranks = {base64.b64decode(entry["token_bytes"], validate=True): rank for rank, entry in enumerate(entries)}
        pattern = str(content["config"]["pattern"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LoadError(f"{path} is no tekken.json that can be read: {error!r}") from error
    vocab = {spelt(token): rank + len(special) for token, rank in ranks.items()}
    found = merges_of(ranks) if merges else []
    return {
        "version": "1.0",
        "added_tokens": [added(token, text, special=True) for token, text in enumerate(special)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                _BYTE_LEVEL,
            ],
        },
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "vocab": vocab | {text: token for token, text in enumerate(special)},
            "merges": [[spelt(left), spelt(right)] for left, right in found],
            "ignore_merges": True,
        },
    }


_BYTE_LEVEL: Final = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def added(token: int, text: str, *, special: bool) -> dict[str, Any]:
    """An entry of a tokenizer.json's added_tokens, which is found as it is, wherever it stands."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": text, "special": special, **plain}


def _special_tokens(content: dict[str, Any]) -> list[str]:
    """Texts of the special tokens in the order of their ids, with fillers where the file counts more than it names."""
    entries = content["special_tokens"]
    if entries is None:
        raise ValueError(
            "it names no special tokens (special_tokens), as the first of their kind; mistral-common knows those"
        )
    named = [str(entry["token_str"]) for entry in sorted(entries, key=lambda entry: entry["rank"])]
    count = content["config"].get("default_num_special_tokens") or len(named)
    return named + [f"<SPECIAL_{index}>" for index in range(len(named), count)]
