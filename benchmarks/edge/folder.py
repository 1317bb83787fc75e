"""The folder of a model that is all tokenizer: a token for each byte, and one for each number of a step, whose text is four digits.

So text tells the numbers of steps as tokens do, also where a gateway has put the texts of several tokens together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.edge.pace import TOLD

DIGITS: Final = 4
_BYTES: Final = sorted(pre_tokenizers.ByteLevel.alphabet())
_FIRST: Final = 1 + len(_BYTES)
"""The token of step 0. Token 0 ends a text, and is never made."""
VOCABULARY: Final = _FIRST + TOLD


def token_of(number: int) -> int:
    """The token of a step."""
    return _FIRST + number % TOLD


def number_of(token: int) -> int:
    """The number of its step, modulo TOLD."""
    return token - _FIRST


def numbers_in(text: str) -> list[int]:
    """The numbers of the steps that a text tells; one that is cut off is left out."""
    return [int(text[start : start + DIGITS]) for start in range(0, len(text) - DIGITS + 1, DIGITS)]


def tokens_of(text: str) -> list[int]:
    """The tokens of a text of printable ASCII."""
    return [1 + _BYTES.index(each) for each in text]


def text_of(tokens: Sequence[int]) -> str:
    """The text of tokens that are bytes of printable ASCII."""
    return "".join(_BYTES[token - 1] for token in tokens)


def write_folder(folder: Path) -> Path:
    """Write config.json and tokenizer.json there."""
    names = ["<|endoftext|>", *_BYTES, *(f"{number:0{DIGITS}d}" for number in range(TOLD))]
    tokenizer = Tokenizer(models.BPE({name: token for token, name in enumerate(names)}, []))
    tokenizer.add_special_tokens(names[:1])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
