"""What a client sees does not depend on how many tokens a step committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from specsplit.generation.output import Output
from specsplit.sessions import Tokens
from specsplit.text.stop import StopScanner
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import SpeculationStatistics, TokenLogprob

TOKENIZER = Tokenizer.load(Path(__file__).parents[2] / "models" / "pocket" / "target")


def bursts(steps: list[tuple[int, ...]], sizes: list[int]) -> list[list[tuple[int, ...]]]:
    """The steps in order, so many of them at a time, and then the rest."""
    ends = [0, *accumulate(sizes), None]
    return [burst for begin, end in pairwise(ends) if (burst := steps[begin:end])]


def committed(step: tuple[int, ...]) -> Tokens:
    """A step of which all but the last were drafts."""
    logprobs = [TokenLogprob(token, -0.5, (TokenLogprob(token, -0.5),)) for token in step]
    return Tokens(step, max(0, len(step) - 1), SpeculationStatistics(), logprobs)


def plain(step: tuple[int, ...]) -> Tokens:
    """A step without drafts."""
    return replace(committed(step), num_correct_drafts=0)


def run(
    steps: list[tuple[int, ...]], stops: list[str], least: int = 0, *, include: bool = False
) -> tuple[str, tuple[int, ...], str | None]:
    return told([[committed(step)] for step in steps], stops, least, include=include)


def told(
    bursts: Sequence[Sequence[Tokens]], stops: list[str], least: int = 0, *, include: bool = False
) -> tuple[str, tuple[int, ...], str | None]:
    output = Output(TOKENIZER.detokenizer(), StopScanner(stops, include=include), TOKENIZER.piece, least)
    deltas = [delta for burst in bursts for delta in output.feed(burst)]
    text = "".join(delta.text for delta in deltas) + output.finish()
    tokens = tuple(token for delta in deltas for token in delta.tokens)
    assert output.kept == len(tokens)
    assert all(delta.num_correct_drafts in (0, len(delta.tokens)) for delta in deltas)
    assert tuple(each.token for delta in deltas for each in delta.logprobs) == tokens
    return text, tokens, output.matched


@given(
    text=st.text("abc é\n你", max_size=30),
    stops=st.lists(st.text("abc é\n你", min_size=1, max_size=4), max_size=3),
    sizes=st.lists(st.integers(1, 5), min_size=30, max_size=30),
)
def test_any_split_into_steps_gives_the_same_text_tokens_and_stop(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    tokens = TOKENIZER.encode(text)
    steps: list[tuple[int, ...]] = []
    at = 0
    for size in sizes:
        steps.append(tokens[at : at + size])
        at += size
    steps.append(tokens[at:])
    for least in (0, 3):
        for include in (False, True):
            one_by_one = run([(token,) for token in tokens], stops, least, include=include)
            assert run(steps, stops, least, include=include) == one_by_one


@given(
    text=st.text("abc é\n你", max_size=30),
    stops=st.lists(st.text("abc é\n你", min_size=1, max_size=4), max_size=3),
    steps=st.lists(st.integers(1, 3), min_size=30, max_size=30),
    sizes=st.lists(st.integers(1, 6), min_size=30, max_size=30),
    least=st.integers(0, 9),
)
def test_any_split_into_bursts_gives_the_same_text_tokens_and_stop(
    text: str, stops: list[str], steps: list[int], sizes: list[int], least: int
) -> None:
    tokens = TOKENIZER.encode(text)
    one_by_one = run([(token,) for token in tokens], stops, least)
    (split,) = bursts([(token,) for token in tokens], [len(tokens)]) or [[]]
    several = [tuple(token for (token,) in burst) for burst in bursts(split, steps)]
    for kind in (committed, plain):
        assert told([[*map(kind, burst)] for burst in bursts(several, sizes)], stops, least) == one_by_one


def test_steps_without_drafts_that_come_at_once_are_one_delta_and_those_with_some_two_each() -> None:
    steps = [TOKENIZER.encode(text) for text in ("x = 1", "y = 2")]
    output = Output(TOKENIZER.detokenizer(), StopScanner(["no"]), TOKENIZER.piece)
    (delta,) = output.feed([plain(step) for step in steps])
    assert (delta.tokens, delta.text) == ((*steps[0], *steps[1]), "x = 1y = 2")
    deltas = output.feed([committed(step) for step in steps])
    assert [delta.num_correct_drafts for delta in deltas] == [len(steps[0]) - 1, 0, len(steps[1]) - 1, 0]


@given(text=st.text(max_size=40))
def test_without_a_stop_the_text_is_all_of_it(text: str) -> None:
    tokens = TOKENIZER.encode(text)
    assert run([tokens], []) == (text, tokens, None)


def test_tokens_are_kept_up_to_and_including_the_one_that_completes_the_stop() -> None:
    tokens = TOKENIZER.encode("x = 1\n\nprint(x)")
    text, kept, matched = run([tokens], ["\n\n"])
    assert (text, matched) == ("x = 1", "\n\n")
    assert kept == tokens[: len(kept)]
    assert "\n\n" in TOKENIZER.decode(kept)
    assert "\n\n" not in TOKENIZER.decode(kept[:-1])


def test_log_probabilities_come_with_the_texts_of_their_tokens() -> None:
    (first, *_) = tokens = TOKENIZER.encode("x = 1")
    output = Output(TOKENIZER.detokenizer(), StopScanner([]), TOKENIZER.piece)
    (delta,) = output.feed((Tokens((first,), 0, SpeculationStatistics(), committed(tokens).logprobs[:1]),))
    assert delta.logprobs == (TokenLogprob(first, -0.5, (TokenLogprob(first, -0.5, text="x"),), "x"),)


def test_stop_strings_count_only_where_they_come_whole_behind_the_least_number_of_tokens() -> None:
    tokens = TOKENIZER.encode("a = 1\nb = 2\nc = 3\n")
    ends = [i for i, token in enumerate(tokens) if "\n" in TOKENIZER.piece(token)]
    for least, end in ((0, ends[0]), (ends[0], ends[0]), (ends[0] + 1, ends[1]), (ends[1] + 1, ends[2])):
        text, kept, matched = run([tokens], ["\n"], least)
        assert (len(kept), matched) == (end + 1, "\n")
        assert text == TOKENIZER.decode(tokens[: end + 1]).removesuffix("\n")
    assert run([tokens], ["\n"], len(tokens)) == (TOKENIZER.decode(tokens), tokens, None)


def test_a_stop_string_may_be_part_of_the_text() -> None:
    tokens = TOKENIZER.encode("x = 1\n\ndef f():")
    text, _, matched = run([tokens], ["\n\ndef"], include=True)
    assert (text, matched) == ("x = 1\n\ndef", "\n\ndef")
