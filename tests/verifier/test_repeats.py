"""Whether a text repeats itself where it ends."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from specsplit_verifier.policy.repeats import LASTING, LEAST, PLACES, Repeats


def follow(text: Sequence[int], ends: Sequence[int]) -> list[bool]:
    """Whether the text repeats itself at each of these ends, read up to one after the other."""
    repeats, found = Repeats(), list[bool]()
    for end in ends:
        repeats.read(text[:end])
        found.append(repeats.now)
    return found


def test_a_text_that_repeats_three_tokens_worked_by_hand() -> None:
    text = [1, 2, 3, 4, 5, 2, 3, 4, *range(10, 30)]
    found = follow(text, range(1, len(text) + 1))
    assert found == [False] * 7 + [True] * LASTING + [False] * (len(text) - 7 - LASTING), "2, 3, 4 stood there before"


@given(st.lists(st.integers(0, 2), max_size=60), st.lists(st.integers(0, 12), max_size=20))
def test_it_is_the_same_however_much_is_read_at_once(text: list[int], pieces: list[int]) -> None:
    ends = [sum(pieces[:count]) for count in range(len(pieces) + 1)]
    seen = [tuple(text[end - LEAST : end]) for end in range(LEAST, len(text) + 1)]
    again = [end + LEAST for end, run in enumerate(seen) if run in seen[:end]]
    for end, now in zip(ends, follow(text, ends), strict=True):
        assert now is any(0 <= min(end, len(text)) - each < LASTING for each in again)


def test_a_long_text_is_remembered_by_its_end() -> None:
    text = list(range(2 * PLACES))
    repeats = Repeats()
    repeats.read(text)
    assert not repeats.now
    repeats.read([*text, *text[:8]])
    assert not repeats.now, "that was too long ago"
    repeats.read([*text, *text[:8], *text[-8:]])
    assert repeats.now
