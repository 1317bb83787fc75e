"""Constraints over the tokens of small models, and what llguidance says of them one token at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits

from specsplit.grammar import Grammars, GrammarState
from specsplit.grammar.grammars import LIMITS
from specsplit.grammar.sources import source_of
from specsplit.grammar.tokens import Tokens
from specsplit.values import Constraint, ConstraintKind, ModelInfo, Vocabulary

POCKET = Path("models/pocket/target")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "number": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["even", "odd"]},
        "parts": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "number", "kind", "parts"],
    "additionalProperties": False,
}
TAG = {"begin": "<call>", "schema": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}}
STRUCTURAL_TAG = {"structures": [{**TAG, "end": "</call>"}], "triggers": ["<call"]}
CONSTRAINTS = {
    "json_schema": Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    "json_object": Constraint(ConstraintKind.JSON_OBJECT),
    "regex": Constraint(ConstraintKind.REGEX, "(def|class) [a-z_]{1,20}[(][)]:( pass)?"),
    "grammar": Constraint(ConstraintKind.GRAMMAR, 'start: sum\nsum: NUMBER | sum "+" NUMBER\nNUMBER: /[0-9]{1,3}/'),
    "choice": Constraint(ConstraintKind.CHOICE, choices=("return", "return None", "yield", "raise é😀")),
    "structural_tag": Constraint(ConstraintKind.STRUCTURAL_TAG, json.dumps(STRUCTURAL_TAG)),
}
LETTERS = [
    Constraint(ConstraintKind.REGEX, text)
    for text in ("[a-p]*", "(ab|c)+", "a{2,3}", "(a|b)(c|d)e?", "[ab]*c", "(aa|b)*p?")
]
"""Over the tokens that `write_letters` names."""


def write_letters(folder: Path, count: int = 16) -> Path:
    """A tokenizer whose tokens are the first letters of the alphabet."""
    decoder = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocab = {chr(ord("a") + token): token for token in range(count)}
    made = {
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": decoder, "decoder": decoder,
        "post_processor": None, "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(made))
    return folder


def grammars(folder: Path, size: int, eos: Sequence[int] = (), limits: LLParserLimits = LIMITS) -> Grammars:
    return Grammars(folder, ModelInfo("m", Vocabulary(size, ""), 512, tuple(eos)), limits)


class Reference:
    """One output, held to a constraint by llguidance alone: no trees, no rollbacks, nothing shared."""

    def __init__(
        self, folder: Path, size: int, constraint: Constraint, ends: Sequence[int], eos: Sequence[int]
    ) -> None:
        self._tokens = Tokens.read(folder, size, "test")
        self._source = source_of(constraint)
        self._size, self._ends, self._eos = size, ends, eos

    def _behind(self, path: Sequence[int]) -> LLMatcher:
        matcher = LLMatcher(self._tokens.tokenizer, self._source, log_level=0)
        assert matcher.consume_tokens(list(path)) or not path
        return matcher

    def complete(self, path: Sequence[int]) -> bool:
        return bool(path) and self._behind(path).is_stopped()

    def allowed(self, path: Sequence[int]) -> set[int]:
        """The tokens that may follow a path that the constraint allows."""
        matcher = self._behind(path)
        found = {token for token in _bits(matcher.compute_bitmask()) if token < self._size} - {
            *self._eos,
            self._tokens.end,
        }
        return found | {*self._ends} if matcher.is_accepting() else found


def _bits(mask: bytes) -> Iterator[int]:
    return iter(np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little").nonzero()[0].tolist())


def allowed_of(words: np.ndarray, size: int) -> set[int]:
    """The tokens that a row of a mask allows."""
    return {token for token in _bits(words.tobytes()) if token < size}


@st.composite
def states(draw: st.DrawFn, made: Grammars, constraints: Sequence[Constraint], vocab_size: int) -> GrammarState:
    """The beginning of an output over letters; some tokens end it, of which some are text as well."""
    ends = draw(st.lists(st.integers(0, vocab_size - 1), max_size=3))
    return made.begin(draw(st.sampled_from(constraints)), ends)
