"""The constraints of one model, compiled. Any thread may compile."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from llguidance import LLMatcher, LLParserLimits

from specsplit.errors import InvalidRequest
from specsplit.grammar.problems import sentence_of
from specsplit.grammar.schema_place import place_of
from specsplit.grammar.sources import parsed, source_of, source_of_schema
from specsplit.grammar.state import GrammarState
from specsplit.grammar.tokens import Tokens
from specsplit.values import Constraint, ConstraintKind, ModelInfo

KEPT: Final = 64
"""Compiled grammars that are kept, those used last."""
LIMITS: Final = LLParserLimits(max_lexer_states=50_000, max_grammar_size=100_000, verbose_errors=False)
"""What compiling a grammar, and one step in it, may take; what is not named here is llguidance's own limit. A state takes 1 to 2 kB."""


class Grammars:
    """Compiles constraints over the tokens of one model, and keeps what it has compiled lately."""

    def __init__(self, folder: Path, info: ModelInfo, limits: LLParserLimits = LIMITS) -> None:
        """`folder`: where the model's tokenizer is. It is read by `read`, or when the first constraint comes."""
        self._limits = limits
        self._folder = folder
        self._info = info
        self._tokens: Tokens | None = None
        self._kept: OrderedDict[Constraint, Compiled] = OrderedDict()
        self._lock = Lock()

    def read(self) -> None:
        """Read the tokenizer, during which no other thread gets on: a second for 50,000 tokens. Raises Unsupported if it cannot be read."""
        with self._lock:
            self._read("constraint")

    def begin(
        self, constraint: Constraint, ends: Collection[int] | None = None, earlier: Sequence[int] = ()
    ) -> GrammarState:
        """Begin an output that is held to a constraint, behind tokens of it that were generated earlier.

        `ends`: the tokens that end it; None: those of the model.

        Raises InvalidRequest, with the place, for a constraint that cannot be compiled, or if those tokens are not what it allows;
        Unsupported if the model's tokenizer cannot be read.
        """
        own_ends = self._info.eos_token_ids
        state = GrammarState(self.compiled(constraint), own_ends if ends is None else ends, own_ends)
        kept = state.advance(earlier)
        if state.broken or kept < len(earlier):
            problem = "goes not with what was generated earlier, which it does not allow; send the constraint that this was held to"
            raise InvalidRequest(constraint.kind, problem)
        return state

    def compiled(self, constraint: Constraint) -> Compiled:
        """The constraint, compiled now or lately; see `begin` for what it raises."""
        with self._lock:
            compiled = self._kept.get(constraint)
            if compiled is not None and not compiled.spent:
                self._kept.move_to_end(constraint)
                return compiled
            tokens = self._read(constraint.kind)
        compiled = Compiled(constraint, tokens, self._limits)
        with self._lock:
            self._kept[constraint] = compiled
            self._kept.move_to_end(constraint)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return compiled

    def _read(self, field: str) -> Tokens:
        """Read the tokenizer, for this field of a request, if it has not been."""
        if self._tokens is None:
            self._tokens = Tokens.read(self._folder, self._info.vocabulary.size, field)
        return self._tokens


class Compiled:
    """One constraint, compiled. What its automaton learns is shared by all who use it."""

    def __init__(self, constraint: Constraint, tokens: Tokens, limits: LLParserLimits) -> None:
        """Raises InvalidRequest, with the place, if it cannot be compiled."""
        self.kind: Final = constraint.kind
        self.tokens: Final = tokens
        self._limits = limits
        self.spent = False
        """True once its automaton has learnt as much as it may."""
        self._source = source_of(constraint)
        self._first = self._made()
        if self._first.is_error():
            raise _failure(constraint, self._first.get_error())

    def matcher(self) -> LLMatcher:
        """A matcher at the beginning of the text."""
        return self._first.deep_copy()

    def fresh(self) -> LLMatcher:
        """A matcher at the beginning of the text whose automaton has learnt nothing yet."""
        return self._made()

    def _made(self) -> LLMatcher:
        return LLMatcher(self.tokens.tokenizer, self._source, log_level=0, limits=self._limits)


def _failure(constraint: Constraint, error: str) -> InvalidRequest:
    problem = sentence_of(error)
    if constraint.kind is ConstraintKind.JSON_SCHEMA:
        problem = f"at {place_of(parsed(constraint.text), _compiles)}: {problem}"
    return InvalidRequest(constraint.kind, f"cannot be compiled: {problem}")


def _compiles(schema: str) -> bool:
    failed, _ = LLMatcher.validate_grammar_with_warnings(source_of_schema(schema), limits=LIMITS)
    return not failed
