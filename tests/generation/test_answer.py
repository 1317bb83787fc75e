"""An answer that begins behind what the caller has streams the rest of it, wherever characters and stop strings were cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest
from specsplit.generation.answer import Answer
from specsplit.generation.burst import GATHERED, parts
from specsplit.generation.output import Output
from specsplit.sessions import Finished, Preempted, Tokens
from specsplit.text.detokenizer import ByteDetokenizer
from specsplit.text.stop import StopScanner
from specsplit.values import FinishReason, NoDrafts, NoDraftsCause, SpeculationStatistics, TokenLogprob, Usage

STEP = SpeculationStatistics(steps=1, drafted=2, accepted=1)
texts = st.text(alphabet="abä€🙂", max_size=8)
stops = st.lists(st.text(alphabet="abä€", min_size=1, max_size=3), max_size=2)


def answer(stop: Sequence[str], earlier: Sequence[int] = (), most: int = 99) -> Answer:
    detokenizer = ByteDetokenizer(lambda token: bytes([token]))
    return Answer(Output(detokenizer, StopScanner(stop), str), most, earlier)


def told(to: Answer, tokens: Sequence[int]) -> str:
    """What a caller hears of tokens that come one by one, and of the end."""
    text = ""
    for token in tokens:
        if to.end is not None:
            return text
        text += "".join(delta.text for delta in to.feed((Tokens((token,), 0, STEP),)))
    if to.end is None:
        end = Finished(FinishReason.LENGTH, None, Usage(1, len(tokens)), STEP)
        text += "".join(delta.text for delta in to.finished(end))
    return text


@given(texts, stops, st.integers(0, 40))
def test_the_rest_is_what_was_not_told_of_the_beginning(text: str, stop: list[str], split: int) -> None:
    tokens = text.encode()
    whole = answer(stop)
    expected = told(whole, tokens)
    first = answer(stop)
    split = min(split, whole.kept)
    heard = ""
    for token in tokens[:split]:
        heard += "".join(delta.text for delta in first.feed((Tokens((token,), 0, STEP),)))
    resumed = answer(stop, tokens[:split])
    assert heard + told(resumed, tokens[split:]) == expected
    assert (resumed.end, resumed.kept) == (whole.end, whole.kept)


@given(texts, stops, st.lists(st.integers(1, 4), min_size=8, max_size=8), st.sets(st.integers(1, 32)))
def test_steps_that_come_at_once_are_told_as_one_by_one(
    text: str, stop: list[str], sizes: list[int], unsure: set[int]
) -> None:
    steps = [
        Tokens(
            (byte,),
            0,
            SpeculationStatistics(steps=n, drafted=2 * n),
            (),
            7,
            NoDrafts(NoDraftsCause.LATE, n) if n in unsure else None,
        )
        for n, byte in enumerate(text.encode(), 1)
    ]
    single, several = answer(stop), answer(stop)
    one_by_one = "".join(delta.text for step in steps if single.end is None for delta in single.feed((step,)))
    heard, left = "", steps
    for size in [*sizes, len(steps)]:
        burst, left = left[:size], left[size:]
        for part in parts(burst):
            if several.end is None and not isinstance(part, Preempted):
                heard += "".join(delta.text for delta in several.hear(part))
    assert heard == one_by_one
    for attribute in ("end", "kept", "tokens", "speculation", "no_drafts", "cached_prompt_tokens", "full"):
        assert getattr(several, attribute) == getattr(single, attribute)


def test_parts_are_worked_out_by_hand() -> None:
    few, many = Tokens((1, 2), 0, STEP), Tokens((3,) * GATHERED, 0, STEP)
    large = Tokens((4,), 0, STEP, (TokenLogprob(4, -1.0),))
    end = Finished(FinishReason.LENGTH, None, Usage(1, 1), STEP)
    assert [*parts((few, few, many, few, Preempted(), few, large, large, few, end))] == [
        [few, few, many], [few], Preempted(), [few], (large,), (large,), [few], end
    ]  # fmt: skip
    assert [*parts((few,))] == [(few,)]


def test_the_sums_of_all_verifiers_are_added_up() -> None:
    of = answer(())
    for _ in range(3):
        for steps in (1, 2):
            of.feed((Tokens((97,), 0, SpeculationStatistics(steps=steps, drafted=5 * steps)),))
        of.moves()
    assert (of.speculation.steps, of.speculation.drafted, of.tokens) == (6, 30, [97] * 6)


def test_why_there_were_no_drafts_is_told_unless_a_verifier_before_had_some() -> None:
    why = NoDrafts(NoDraftsCause.LATE)
    for drafted, told in ((0, why), (5, None)):
        of = answer(())
        of.feed((Tokens((97,), 0, SpeculationStatistics(steps=1, drafted=drafted)),))
        of.moves()
        of.finished(Finished(FinishReason.LENGTH, None, Usage(1, 1), SpeculationStatistics(steps=9), why))
        assert of.no_drafts == told


def test_an_answer_that_ends_by_a_stop_string_has_the_reason_told_last_unless_it_had_drafts_since() -> None:
    late, price = NoDrafts(NoDraftsCause.LATE), NoDrafts(NoDraftsCause.PRICE, 4, 1.9, 1.4)
    for drafted, told in ((0, price), (3, None)):
        of = answer(("c",))
        for steps, why in ((1, late), (2, price), (3, None)):
            of.feed((Tokens((97,), 0, SpeculationStatistics(steps), no_drafts=why),))
        of.feed((Tokens((99,), 0, SpeculationStatistics(4, drafted)),))
        assert of.end is not None and of.end.matched == "c"
        assert of.no_drafts == told


def test_more_than_the_answer_can_have_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="resume_from: has 4 tokens, but the answer ends after 3 at most"):
        answer((), [97] * 4, most=3)
    with pytest.raises(InvalidRequest, match="resume_from: has 3 tokens, but the answer ends after 2 at most"):
        answer(("ab",), [97, 98, 97])
