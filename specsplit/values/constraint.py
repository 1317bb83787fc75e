"""What the text of an output is held to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specsplit.values.checks import require


class ConstraintKind(StrEnum):
    """How a constraint is written. Each is a field of requests."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    """Any JSON object."""
    REGEX = "regex"
    GRAMMAR = "grammar"
    """A context-free grammar in Lark's notation."""
    CHOICE = "choice"
    STRUCTURAL_TAG = "structural_tag"
    """Tags within free text, each with a schema inside."""


@dataclass(frozen=True)
class Constraint:
    """The outputs that a request allows."""

    kind: ConstraintKind
    text: str = ""
    """The schema, expression, grammar or tags; empty for a JSON object and for choices."""
    choices: tuple[str, ...] = ()
    """The texts to choose from."""

    def __post_init__(self) -> None:
        if self.kind is ConstraintKind.CHOICE:
            require(bool(self.choices), "choice", "is empty, expected at least one text")
        elif self.kind is not ConstraintKind.JSON_OBJECT:
            require(bool(self.text), self.kind, "is empty")
