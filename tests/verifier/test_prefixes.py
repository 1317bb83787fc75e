"""What is found of a text in the prefix cache is what others have computed of it and left there."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.sessions import DecodeRequest
from specsplit.values import Plan
from specsplit_verifier.schedule.prefix_cache import PrefixCache
from specsplit_verifier.schedule.prefixes import Prefixes
from specsplit_verifier.sessions.session import Session, StopRule

SIZE = 4
TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=20).map(lambda tokens: [1] * 6 + tokens)


class Texts:
    """Sessions over one pool, without an engine."""

    def __init__(self, *, sharing: bool = True) -> None:
        self.pool = PagePool(64, SIZE)
        self.cache = PrefixCache(self.pool)
        self.prefixes = Prefixes(self.pool, self.cache, sharing=sharing)

    def session(self, number: int, tokens: list[int], computed: int = 0) -> Session:
        """One of which so many tokens are computed."""
        request = DecodeRequest(str(number), tuple(tokens))
        session = Session(number, request, Plan(), StopRule(5), PageTable(self.pool), tokens, computed)
        session.table.reserve(computed)
        return session

    def end(self, session: Session, *, sound: bool) -> None:
        session.table.release()
        self.prefixes.end(session, 0, sound=sound)


@given(TEXTS, TEXTS, st.data(), st.booleans(), st.booleans())
def test_found_are_the_full_pages_that_another_has_computed_of_the_same_tokens_until_they_turn_out_broken(
    one: list[int], other: list[int], data: st.DataObject, sharing: bool, sound: bool
) -> None:
    texts = Texts(sharing=sharing)
    first = texts.session(1, one, data.draw(st.integers(0, len(one))))
    second = texts.session(2, other)
    texts.prefixes.share([first])
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    alike = min(common, first.kv_length, len(other) - 1) // SIZE
    expected = alike if sharing else 0
    assert texts.prefixes.found(second) == expected
    assert texts.prefixes.idle(second, expected) == 0, "the first has them"
    texts.end(first, sound=sound)
    found = texts.prefixes.found(second)
    assert found == (expected if sound else 0)
    assert texts.prefixes.idle(second, found) == found
    before = texts.cache.idle_pages
    assert len(texts.prefixes.take(second, found)) == found
    assert texts.cache.idle_pages == before - found


def test_a_session_awaits_the_first_page_that_it_lacks_and_nobody_elses() -> None:
    texts = Texts()
    first, second, other = (texts.session(number, [number // 3] * 14) for number in (1, 2, 3))
    assert texts.prefixes.awaits(second, [first]) and not texts.prefixes.awaits(other, [first])
    first.table.reserve(13)
    first.kv_length = 12
    texts.prefixes.share([first])
    assert texts.prefixes.found(second) == 3 and not texts.prefixes.awaits(second, [first]), "it lacks no full page"
