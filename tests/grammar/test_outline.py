"""Where few texts may follow, a grammar's outline has all of them, spelled as the tokenizer would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.grammar import GrammarState
from specsplit.grammar.outline import FEW
from specsplit.grammar.tokens import Tokens
from specsplit.values import Constraint, ConstraintKind
from tests.support.grammars import LETTERS, POCKET, Reference, allowed_of, grammars, write_letters

VOCAB, POCKET_VOCAB = 16, 2048


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_letters(tmp_path_factory.mktemp("letters"), VOCAB)


def held_to(**properties: Any) -> Constraint:
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema))


def texts(state: GrammarState) -> dict[str, float]:
    """The whole texts that are forced and outlined, each with its share; none if nothing is outlined."""
    decode, outline = Tokens.read(POCKET, POCKET_VOCAB, "test").tokenizer.decode_str, state.outline
    found = {-1: (decode(state.forced), 1.0)}
    for number, (token, above, part) in enumerate(zip(*outline, strict=True)):
        text, share = found[above]
        found[number] = text + decode([token]), share * part
    return dict(each for number, each in found.items() if number >= 0 and number not in outline.parents)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"type": "boolean"}, {"true": 1 / 2, "false": 1 / 2}),
        ({"enum": ["good", "bad", "none"]}, {'"good"': 1 / 3, '"bad"': 1 / 3, '"none"': 1 / 3}),
        ({"enum": ["get_time", "get_news", "search"]}, {'"search"': 1 / 2, '"get_time"': 1 / 4, '"get_news"': 1 / 4}),
    ],
)
def test_the_few_values_of_a_key_and_what_follows_them(values: dict[str, Any], expected: dict[str, float]) -> None:
    state = grammars(POCKET, POCKET_VOCAB).begin(held_to(first=values, then={"type": "string"}))
    whole = {f'{{"first":{value},"then":': share for value, share in expected.items()}
    assert texts(state) == pytest.approx(whole)


@pytest.mark.parametrize("values", [{"enum": ["a", "b", "c", "d", "e"]}, {"type": "integer"}, {"type": "string"}])
def test_of_many_values_there_is_none(values: dict[str, Any]) -> None:
    state = grammars(POCKET, POCKET_VOCAB).begin(held_to(first=values))
    assert texts(state).keys() <= {'{"first":"'}


def test_what_may_stand_behind_an_item_of_a_list() -> None:
    items = {"type": "array", "items": {"enum": ["of_all"]}, "minItems": 1}
    state = grammars(POCKET, POCKET_VOCAB).begin(held_to(tags=items))
    spell = Tokens.read(POCKET, POCKET_VOCAB, "test").spell
    state.advance(spell(b'{"tags":["of_all"'))
    assert {"]}", ',"of_all"]}'} < texts(state).keys()
    state.advance(spell(b"]"))
    assert state.forced and not texts(state), "what has to follow is no part of it"


@given(st.data())
def test_all_of_it_may_follow_and_nothing_is_as_likely_as_all(folder: Path, data: st.DataObject) -> None:
    """And the state stands where it stood."""
    constraint = data.draw(st.sampled_from(LETTERS))
    state, reference = grammars(folder, VOCAB).begin(constraint, ()), Reference(folder, VOCAB, constraint, (), ())
    text: list[int] = []
    for _ in range(data.draw(st.integers(0, 5))):
        allowed = sorted(allowed_of(state.masks([0], [-1])[0], VOCAB))
        if state.complete or not allowed:
            break
        text.append(data.draw(st.sampled_from(allowed)))
        state.advance(text[-1:])
    outline = state.outline
    paths = {-1: [*text, *state.forced]}
    for number, (token, above, part) in enumerate(zip(*outline, strict=True)):
        assert 0.0 < part <= 1.0
        assert token in reference.allowed(paths[above])
        paths[number] = [*paths[above], token]
    for place in {*outline.parents}:
        below = [number for number, above in enumerate(outline.parents) if above == place]
        assert len(below) <= FEW and len({outline.tokens[number] for number in below}) == len(below)
        assert sum(outline.parts[number] for number in below) <= 1.0 + 1e-9
    if not state.complete:
        assert allowed_of(state.masks([0], [-1])[0], VOCAB) == reference.allowed(text)
