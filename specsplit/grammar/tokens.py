"""The tokens of a model as llguidance reads them, and the one that stands for the end of a text."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from llguidance import LLTokenizer

from specsplit.errors import Unsupported
from specsplit.grammar.problems import sentence_of
from specsplit.text.tokenizer_file import tokenizer_facts

_log = logging.getLogger(__name__)
_BYTES: Final = sorted(range(32, 127), key=lambda byte: not chr(byte).isalnum())
_END: Final = "<|end of what is held to a grammar|>"


@dataclass(frozen=True)
class Tokens:
    """The tokens of one model.

    Some models have no end token, and others several, so a token behind all others stands for the end: masks have it where a text may end.
    """

    tokenizer: LLTokenizer
    end: int
    count: int
    """Tokens that a mask has a bit for: all that the model has logits for, and the end."""
    letters: Mapping[int, bytes]
    """Tokens of one printable byte, digits and letters first."""

    @classmethod
    def read(cls, folder: Path, vocab_size: int, field: str) -> Tokens:
        """Read the tokenizer in a model's folder. Raises Unsupported, naming the `field` that needs it, if none can be read."""
        facts = tokenizer_facts(folder)
        if facts is None:
            raise Unsupported(field, "needs the tokenizer of the model, whose folder has none; leave it out")
        end = 1 + max(_ids(facts))
        special = {"id": end, "content": _END, "special": True, "normalized": False}
        special |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        whole = {
            **facts,
            "added_tokens": [*(facts.get("added_tokens") or ()), special],
            "padding": None,
            "truncation": None,
        }
        count = max(vocab_size, end + 1)
        try:
            tokenizer = LLTokenizer(json.dumps(whole), n_vocab=count, eos_token=end)
        except Exception as error:  # whatever the library raises for a tokenizer that it cannot read
            why = sentence_of(str(error))
            _log.warning(
                "output cannot be held to grammars: llguidance does not read the tokenizer of this model: %s", why
            )
            raise Unsupported(
                field, f"needs a tokenizer that llguidance reads, and does not: {why}; leave it out"
            ) from error
        return cls(tokenizer, end, count, _letters(tokenizer))

    def spell(self, text: bytes) -> list[int]:
        """The tokens of a text as the tokenizer has them; none if it cannot say."""
        spelled = self.tokenizer.tokenize_bytes(text)
        return spelled if self.tokenizer.decode_bytes(spelled) == text else []


def _letters(tokenizer: LLTokenizer) -> dict[int, bytes]:
    """The tokens of one printable byte each, those first that are likely to be allowed where much is."""
    found = {tuple(tokenizer.tokenize_bytes(bytes([byte]))): bytes([byte]) for byte in _BYTES}
    return {
        token[0]: byte for token, byte in found.items() if len(token) == 1 and tokenizer.decode_bytes([*token]) == byte
    }


def _ids(facts: Mapping[str, Any]) -> Iterator[int]:
    table: object = facts["model"]["vocab"]
    yield from (
        cast("dict[str, int]", table).values() if isinstance(table, dict) else range(len(cast("list[object]", table)))
    )
    yield from (int(token["id"]) for token in facts.get("added_tokens") or ())
