"""What cannot be compiled is said with its place; what is large is refused or compiled, within bounds, and never ends the process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest, Unsupported
from specsplit.grammar.grammars import KEPT
from specsplit.grammar.schema_place import place_of
from specsplit.values import Constraint, ConstraintKind
from tests.support.grammars import CONSTRAINTS, POCKET, SCHEMA, allowed_of, grammars

KINDS = ConstraintKind


def refusal(kind: ConstraintKind, text: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        grammars(POCKET, 2048, [0]).begin(Constraint(kind, text))
    assert caught.value.field == kind
    return caught.value.problem


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (KINDS.JSON_SCHEMA, '{"type":', "is no JSON schema: EOF while parsing a value at line 1 column 8"),
        (KINDS.JSON_SCHEMA, "[]", "is no JSON schema: "),
        (KINDS.JSON_SCHEMA, '{"type": "text"}', "cannot be compiled: at #: Invalid type: text"),
        (
            KINDS.JSON_SCHEMA,
            '{"properties": {"a": {}, "b": {"anyOf": [{}, {"items": {"type": "text"}}]}}}',
            "cannot be compiled: at #/properties/b/anyOf/1/items: Invalid type: text",
        ),
        (
            KINDS.JSON_SCHEMA,
            '{"$defs": {"x": {"not": {}}}, "properties": {"a": {"$ref": "#/$defs/x"}}}',
            "cannot be compiled: at #/$defs/x: Unimplemented keys",
        ),
        (KINDS.REGEX, "abc(a(b", "cannot be compiled: unclosed group, at '(b'"),
        (KINDS.REGEX, "a(?=b)", "cannot be compiled: look-around"),
        (KINDS.GRAMMAR, "start: item\n bar", "cannot be compiled: line 2, column 5: Expected token ':'"),
        (KINDS.GRAMMAR, "start: item", 'cannot be compiled: line 1, column 8: unknown name: "item"'),
        (KINDS.STRUCTURAL_TAG, "{", "is no JSON: "),
        (KINDS.STRUCTURAL_TAG, "{}", "lacks a part, or has one of a wrong type: KeyError('format')"),
        (KINDS.STRUCTURAL_TAG, '{"format": {"type": "token"}}', "has at format the type 'token', which is not supported"),
        (
            KINDS.STRUCTURAL_TAG,
            '{"structures": [{"begin": "<a", "schema": {}, "end": ""}], "triggers": ["<b"]}',
            "has at structures the trigger '<b', with which no tag begins",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_compiled_is_said_with_its_place(kind: ConstraintKind, text: str, problem: str) -> None:
    assert refusal(kind, text).startswith(problem)


paths = st.lists(st.sampled_from(["properties/a", "anyOf/0", "items", "additionalProperties", "$defs/d"]), max_size=4)


@given(paths)
def test_the_place_is_that_of_the_part_that_is_wrong(path: list[str]) -> None:
    broken: dict[str, Any] = {"type": "wrong"}
    for step in reversed(path):
        key, _, name = step.partition("/")
        broken = {key: [broken, {}] if name == "0" else {name: broken, "z": {}} if name else broken}
    found = place_of(broken, lambda text: "wrong" not in text)
    assert found == "/".join(["#", *path])


def nested(levels: int) -> str:
    return '{"properties": {"a": ' * levels + "{}" + "}}" * levels


BOMBS: dict[str, Callable[[], Constraint]] = {
    "counts in counts": lambda: Constraint(KINDS.REGEX, "((a{1,100}){1,100}){1,100}"),
    "ambiguous prefixes": lambda: Constraint(KINDS.REGEX, "(.*a.{20}){3}"),
    "deep groups": lambda: Constraint(KINDS.REGEX, "(" * 60_000 + "a" + ")" * 60_000),
    "a long expression": lambda: Constraint(KINDS.REGEX, "(ab|cd?)*" * 10_000),
    "a deep schema": lambda: Constraint(KINDS.JSON_SCHEMA, nested(5_000)),
    "a schema that means itself": lambda: Constraint(KINDS.JSON_SCHEMA, '{"$ref": "#"}'),
    "alternatives of alternatives": lambda: Constraint(
        KINDS.JSON_SCHEMA,
        json.dumps({"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(4)]} for i in range(12)]}),
    ),
    "multiples": lambda: Constraint(KINDS.JSON_SCHEMA, '{"type": "integer", "multipleOf": 982451653}'),
    "deep parentheses": lambda: Constraint(KINDS.GRAMMAR, "start: " + "(" * 60_000 + '"a"' + ")" * 60_000),
    "doubling rules": lambda: Constraint(
        KINDS.GRAMMAR, "start: a0\n" + "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(40)) + '\na40: "x"?'
    ),
    "everything is ambiguous": lambda: Constraint(KINDS.GRAMMAR, "start: start start start | /a/ |"),
    "repeated repetitions": lambda: Constraint(KINDS.GRAMMAR, 'start: x{0,3000}\nx: y{0,3000}\ny: "a"?'),
    "deep tags": lambda: Constraint(KINDS.STRUCTURAL_TAG, '{"format":' * 5_000 + "1" + "}" * 5_000),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_grammar_bomb_is_refused_or_serves(bomb: str) -> None:
    """By limits of what is compiled and of a step, not by time: behind each the process goes on."""
    try:
        state = grammars(POCKET, 2048, [0]).begin(BOMBS[bomb]())
    except InvalidRequest:
        return
    for _ in range(20):
        words = state.masks([0], [-1])
        if state.problem or state.complete:
            return
        state.advance([min(allowed_of(words[0], 2048))])


def test_compiled_grammars_are_kept_and_bounded() -> None:
    made = grammars(POCKET, 2048, [0])
    first = made.compiled(CONSTRAINTS["json_schema"])
    assert made.compiled(Constraint(KINDS.JSON_SCHEMA, json.dumps(SCHEMA))) is first
    for i in range(KEPT):
        made.compiled(Constraint(KINDS.REGEX, f"a{{{i + 1}}}"))
    assert made.compiled(CONSTRAINTS["json_schema"]) is not first


def test_output_that_goes_on_is_held_to_what_it_was_begun_with() -> None:
    made = grammars(POCKET, 2048, [0])
    state = made.begin(CONSTRAINTS["json_schema"])
    first = min(allowed_of(state.masks([0], [-1])[0], 2048))
    assert not made.begin(CONSTRAINTS["json_schema"], earlier=[first]).broken
    with pytest.raises(InvalidRequest, match="json_schema: goes not with what was generated earlier"):
        made.begin(CONSTRAINTS["json_schema"], earlier=[5, 6])


def test_a_model_without_a_tokenizer_and_one_that_is_not_read_are_said(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="regex: needs the tokenizer of the model, whose folder has none"):
        grammars(tmp_path, 16).begin(Constraint(KINDS.REGEX, "a"))
    words = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(Unsupported, match="regex: needs a tokenizer that llguidance reads, and does not: "):
        grammars(tmp_path, 16).begin(Constraint(KINDS.REGEX, "a"))
