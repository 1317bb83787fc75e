"""A constraint in the form that llguidance compiles."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher

from specsplit.errors import InvalidRequest
from specsplit.grammar.structural_tag import lark_of, literal
from specsplit.values import Constraint, ConstraintKind

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_COMPACT: Final[JsonCompileOptions] = {"whitespace_flexible": False}
"""Without whitespace most of what is not of a value follows from the schema, and a model cannot write blanks for ever."""


def source_of(constraint: Constraint) -> str:
    """Write the constraint. Raises InvalidRequest, with the place, for what is not JSON and should be."""
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return source_of_schema(constraint.text)
        case ConstraintKind.JSON_OBJECT:
            return source_of_schema('{"type":"object"}')
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(constraint.text)
        case ConstraintKind.GRAMMAR:
            return LLMatcher.grammar_from_lark(constraint.text)
        case ConstraintKind.CHOICE:
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(literal, constraint.choices)))
        case ConstraintKind.STRUCTURAL_TAG:
            return LLMatcher.grammar_from_lark(lark_of(constraint.text))


def source_of_schema(schema: str) -> str:
    """Write a schema. Raises InvalidRequest for what is no JSON, or no object."""
    try:
        return LLMatcher.grammar_from_json_schema(schema, defaults=_COMPACT)
    except ValueError as error:
        raise InvalidRequest(ConstraintKind.JSON_SCHEMA, f"is no JSON schema: {error}") from error


def parsed(schema: str) -> dict[str, object]:
    """The object that `source_of_schema` has taken."""
    return json.loads(schema)
