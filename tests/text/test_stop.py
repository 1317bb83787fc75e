"""Stop strings are found wherever the text is cut, and nothing of them or past them comes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest
from specsplit.text.stop import StopScanner

LETTERS = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """What must come out and what must match: by the definition, character by character."""
    for end in range(len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            longest = max(matches, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces: list[str] = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


@given(text=LETTERS, stops=STOPS, sizes=st.lists(st.integers(0, 4), max_size=20))
def test_the_same_text_and_match_come_out_however_the_text_is_cut(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    scanner = StopScanner(stops)
    streamed = "".join(scanner.feed(piece) for piece in cut(text, sizes))
    streamed += scanner.flush()
    assert (streamed, scanner.matched) == first_stop(text, stops)


@given(text=LETTERS, stops=STOPS)
def test_nothing_streamed_early_is_ever_part_of_a_stop(text: str, stops: list[str]) -> None:
    expected, _ = first_stop(text, stops)
    scanner = StopScanner(stops)
    streamed = ""
    for character in text:
        streamed += scanner.feed(character)
        assert expected.startswith(streamed)


@given(text=LETTERS)
def test_without_stops_everything_passes_at_once(text: str) -> None:
    assert StopScanner().feed(text) == text


def test_a_stop_string_may_span_three_pieces() -> None:
    scanner = StopScanner(["\n\ndef"])
    assert scanner.feed("return 1\n") == "return 1"
    assert scanner.feed("\nd") == ""
    done = scanner.feed("ef f(): more")
    assert (done, scanner.matched) == ("", "\n\ndef")
    assert scanner.feed("never") == ""
    assert scanner.flush() == ""


def test_the_stop_that_is_complete_first_wins_and_releases_what_another_held_back() -> None:
    scanner = StopScanner(["abcd", "bc"])
    assert scanner.feed("xa") == "x"
    done = scanner.feed("bc")
    assert (done, scanner.matched) == ("a", "bc")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="stop"):
        StopScanner(["a", ""])
