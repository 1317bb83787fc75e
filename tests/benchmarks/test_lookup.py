"""Texts along which drafters without a model are replayed, worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lookup.bench import BEFORE, LOOKUP, SHARED, aims, tokens_a_step
from benchmarks.lookup.drafting import Drafting, Ngram, PromptLookup
from benchmarks.lookup.turn import TRACES, Turn, read, write

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=30).map(tuple)


def steps(drafting: Drafting, prompt: list[int], output: list[int]) -> list[int]:
    return [*drafting.follow(Turn(tuple(prompt), tuple(output)))]


def test_prompt_lookup_drafts_what_followed_the_first_place_and_a_step_commits_one_token_more() -> None:
    # "1 2" was followed by 3 4 1 2, of which 3 is right. Behind "3 9" nothing is found, and behind "9 9" a 9, too late.
    assert steps(PromptLookup(10), [1, 2, 3, 4, 1, 2], [3, 9, 9, 5]) == [2, 1, 1]
    assert steps(PromptLookup(10), [1, 2, 3, 4, 1, 2], [3, 4, 1, 9]) == [4]
    assert steps(PromptLookup(2), [1, 2, 3, 4, 1, 2], [3, 4, 1, 2]) == [3, 1]


def test_the_ngram_drafter_follows_both_of_two_continuations_as_far_as_it_may() -> None:
    prompt = [1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 1, 2]
    assert steps(Ngram(16), prompt, [3, 4, 5, 9]) == [4]
    assert steps(Ngram(16), prompt, [6, 7, 8, 9]) == [4]
    assert steps(PromptLookup(16), prompt, [6, 7, 8, 9]) == [1, 3]
    assert steps(Ngram(1), prompt, [6, 7, 8, 9]) == [2, 2], "the latest is the likeliest"


def test_outputs_of_an_earlier_turn_are_drafted_where_they_are_shared() -> None:
    shared, alone = Ngram(16, b"client"), Ngram(16)
    assert steps(shared, [1], [5, 6, 7, 8]) == steps(alone, [1], [5, 6, 7, 8]) == [1, 1, 1, 1]
    assert steps(alone, [1], [5, 6, 7, 8]) == [1, 1, 1, 1]
    assert steps(shared, [1], [5, 6, 7, 8]) == [1, 3]


@given(TOKENS, TOKENS, st.sampled_from([1, 4, 16]))
def test_steps_commit_the_whole_output_and_no_more_than_was_drafted_and_one(
    prompt: tuple[int, ...], output: tuple[int, ...], nodes: int
) -> None:
    for drafting in (Ngram(nodes), Ngram(nodes, b"client"), PromptLookup(nodes)):
        committed = steps(drafting, [*prompt], [*output])
        assert sum(committed) == len(output)
        assert all(1 <= each <= nodes + 1 for each in committed)


def test_tokens_a_step_are_of_all_turns_together() -> None:
    turns = [Turn((1,), (5, 6, 7, 8)), Turn((1,), (5, 6, 7, 8))]
    assert tokens_a_step(Ngram(16, b"client"), turns) == 8 / 6


def test_aims_are_told_as_met_or_missed() -> None:
    tenfold, equal = ({trace: factor * before for trace, before in BEFORE.items()} for factor in (10.0, 1.0))
    assert all("aim 1.2: met" in told and "10.00 of lookup" in told for told in aims({SHARED: tenfold, LOOKUP: equal}))
    assert all("aim 1.2: missed" in told and "aim 1: missed" in told for told in aims({SHARED: equal, LOOKUP: tenfold}))


def test_a_later_turn_of_a_conversation_is_written_without_what_came_before(tmp_path: Path) -> None:
    first = Turn((1, 2), (3,))
    later, other = Turn((1, 2, 3, 4), (5, 6)), Turn((7,), (8,))
    write(tmp_path / "turns", [[first, later], [other]])
    assert (tmp_path / "turns").read_text().splitlines() == [
        '{"continues":false,"said":[1,2],"output":[3]}',
        '{"continues":true,"said":[4],"output":[5,6]}',
        '{"continues":false,"said":[7],"output":[8]}',
    ]
    assert read(tmp_path / "turns") == [first, later, other]
    with pytest.raises(ValueError, match="turn 1 does not begin with the turn before it"):
        write(tmp_path / "turns", [[first, other]])


@pytest.mark.parametrize(
    "line", ["nothing", "[]", '{"said":[1],"output":[2]}', '{"continues":false,"said":1,"output":[2]}']
)
def test_a_line_that_is_no_turn_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "turns").write_text('{"continues":false,"said":[1],"output":[2]}\n' + line)
    with pytest.raises(ValueError, match=r"line 2 of .* is no turn"):
        read(tmp_path / "turns")


@pytest.mark.parametrize("trace", BEFORE)
def test_recorded_turns_are_answers_to_prompts(trace: str) -> None:
    turns = read(TRACES / f"{trace}.jsonl")
    assert len(turns) >= 6
    assert all(turn.prompt and turn.output for turn in turns)
