"""What may be picked behind every node of a tree is what its own path says, and an output ends where its grammar does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLParserLimits

from specsplit.grammar.tokens import Tokens
from specsplit.values import Constraint, ConstraintKind
from tests.support.grammars import CONSTRAINTS, LETTERS, POCKET, Reference, allowed_of, grammars, write_letters
from tests.support.kernels import trees

VOCAB = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_letters(tmp_path_factory.mktemp("letters"), VOCAB)


@given(st.data())
def test_the_mask_of_a_node_follows_from_its_own_path(folder: Path, data: st.DataObject) -> None:
    """Drafts hold many tokens that are not allowed, ends, and tokens behind either."""
    constraint = data.draw(st.sampled_from(LETTERS))
    eos = data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=2, unique=True))
    ends = data.draw(st.sampled_from([eos, []]) | st.lists(st.integers(0, VOCAB - 1), max_size=3))
    reference = Reference(folder, VOCAB, constraint, ends, eos)
    state = grammars(folder, VOCAB, eos).begin(constraint, ends)
    text: list[int] = []
    for _ in range(3):
        draft = data.draw(trees(VOCAB, 5))
        words = state.masks(draft.tokens, draft.parents)
        assert (state.masks(draft.tokens, draft.parents) == words).all(), "the walk ends where it began"
        legal = {0: text}
        for node, parent in enumerate(draft.parents):
            token = draft.tokens[node]
            if parent >= 0:
                if parent not in legal or token in ends or token not in allowed_of(words[parent], VOCAB):
                    continue
                if reference.complete(legal[parent]):
                    continue
                legal[node] = [*legal[parent], token]
            expected = {*range(VOCAB)} if reference.complete(legal[node]) else reference.allowed(legal[node])
            assert allowed_of(words[node], VOCAB) == expected, legal[node]
        may = sorted(allowed_of(words[0], VOCAB) - {*ends})
        if not may:
            return
        text = [*text, data.draw(st.sampled_from(may))]
        assert state.advance(text[-1:]) == 1
        assert state.complete is reference.complete(text)
        if state.complete:
            assert state.advance([0]) == 0
            return


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_every_kind_of_constraint_allows_what_it_says(kind: str) -> None:
    texts: dict[str, list[tuple[str, bool, bool]]] = {
        "json_schema": [
            ('{"name":"a b","number":7,"kind":"odd","parts":[true,false]}', True, True),
            ('{"name":"a b", "number":7', False, False),
            ('{"name":"a b","number":100', False, False),
        ],
        "json_object": [('{"a":{"b":[1,null,"x"]}}', True, True), ("[1]", False, False)],
        "regex": [("def f():", True, False), ("class g(): pass", True, True), ("def F", False, False)],
        "grammar": [("1+22+333", True, False), ("1+1000", False, False)],
        "choice": [
            ("return", True, False),
            ("return None", True, True),
            ("raise é😀", True, True),
            ("yes", False, False),
        ],
        "structural_tag": [
            ("no call", True, False),
            ('so <call>{"a":true}</call> and so on', True, False),
            ('so <call>{"b"', False, False),
        ],
    }
    made = grammars(POCKET, 2048, [0])
    for text, legal, complete in texts[kind]:
        state = made.begin(CONSTRAINTS[kind])
        tokens = Tokens.read(POCKET, 2048, "test").tokenizer.tokenize_str(text)
        kept = state.advance(tokens)
        assert (kept == len(tokens) and not state.broken, state.complete) == (legal, complete), text


def test_an_end_may_be_picked_exactly_where_the_text_may_end(folder: Path) -> None:
    state = grammars(folder, VOCAB, [15]).begin(Constraint(ConstraintKind.REGEX, "[a-p]{2,3}"))
    found: list[bool] = []
    while not state.complete:
        found.append(15 in allowed_of(state.masks([0], [-1])[0], VOCAB))
        state.advance([1])
    assert found == [False, False, True], "an end token of the model is no text, though it is spelled like some"


def test_what_the_tokens_of_a_model_cannot_spell_is_said(folder: Path) -> None:
    state = grammars(folder, VOCAB).begin(Constraint(ConstraintKind.REGEX, "ab?z"))
    state.advance([0, 1])
    assert not allowed_of(state.masks([1], [-1])[0], VOCAB)
    assert str(state.failure) == "regex: allows no token of this model behind 2 tokens of output"


def test_sessions_of_one_grammar_outlive_what_it_has_learnt(folder: Path) -> None:
    """The automaton that they share is full: each goes on with one of its own, and the next begins with a new one."""
    constraint = Constraint(ConstraintKind.REGEX, "[a-p]{0,400}(ab|cd){0,200}")
    made = grammars(folder, VOCAB, limits=LLParserLimits(max_lexer_states=150))
    reference = Reference(folder, VOCAB, constraint, (), ())
    state, text, first = made.begin(constraint), list[int](), made.compiled(constraint)
    for step in range(60):
        other = made.begin(constraint)
        for each, path in ((state, text), (other, [])):
            words = each.masks([path[-1] if path else 0], [-1])
            assert allowed_of(words[0], VOCAB) == reference.allowed(path) and not each.problem
        text.append(step % 4)
        state.advance(text[-1:])
    assert first.spent and not made.compiled(constraint).spent


def test_a_grammar_that_is_too_complex_for_its_limits_allows_nothing_and_says_so(folder: Path) -> None:
    made = grammars(folder, VOCAB, limits=LLParserLimits(max_lexer_states=40))
    state = made.begin(Constraint(ConstraintKind.REGEX, "[a-p]{0,400}(ab|cd){0,200}"))
    words = state.masks([0], [-1])
    while not state.problem:
        state.advance([0])
        words = state.masks([0], [-1])
    assert not words.any()
    assert str(state.failure).startswith("regex: is too complex (")


def test_nothing_is_taken_behind_what_completes_an_output_not_even_its_end(folder: Path) -> None:
    state = grammars(folder, VOCAB).begin(Constraint(ConstraintKind.REGEX, "(aa|b)*p?"), [0])
    assert state.legal((0, 15, 0), (-1, 0, 1)) == [0, 1]
    assert state.legal((0, 1, 0), (-1, 0, 1)) == [0, 1, 2], "behind b more may follow, or the end"


@given(st.data())
def test_what_is_drafted_and_what_is_taken_of_drafts_is_what_a_path_allows(folder: Path, data: st.DataObject) -> None:
    """Where something has to follow, only the token that spells it is worth drafting; it is one of those that may be picked."""
    constraint = data.draw(st.sampled_from(LETTERS))
    ends = data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=3))
    reference = Reference(folder, VOCAB, constraint, ends, ())
    state = grammars(folder, VOCAB).begin(constraint, ends)
    draft = data.draw(trees(VOCAB, 5))
    paths: dict[int, tuple[int, ...]] = {0: ()}
    allowed = {0}
    for node, parent in enumerate(draft.parents):
        if parent < 0:
            continue
        token, above = draft.tokens[node], paths[parent]
        paths[node] = (*above, token)
        if parent not in allowed or set(ends) & set(above) or reference.complete(above):
            continue
        if token in reference.allowed(above):
            allowed.add(node)
    assert state.legal(draft.tokens, draft.parents) == sorted(allowed)
    walked = sorted(node for node in allowed if not set(ends) & set(paths[node]))
    for node, words in zip(walked, state.draftable([paths[node] for node in walked]), strict=True):
        found = allowed_of(words, VOCAB)
        if reference.complete(paths[node]):
            assert not found
        elif len(found) == 1:
            assert found <= reference.allowed(paths[node])
        else:
            assert found == reference.allowed(paths[node])
    forbidden = sorted({*paths} - allowed)
    assert not state.draftable([paths[node] for node in forbidden if not set(ends) & set(paths[node])]).any()
