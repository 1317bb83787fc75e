"""What the coordinator is told of the pages that a verifier has."""

from __future__ import annotations

from pathlib import Path

from specsplit.model.pages.pool import PagePool
from specsplit.prefix import FIRST_PAGES, REPORTED, extend, first_marks, mark
from specsplit.sessions import DecodeRequest
from specsplit.values import Plan, Stopping
from specsplit_verifier.schedule.kv_cache_manager import KVCacheManager
from specsplit_verifier.schedule.prefix_cache import RecentPrefixes
from tests.support.toys import random_target
from tests.verifier.conftest import decode, verifier_over
from tests.verifier.test_kv_cache_manager import session_of


def digests_of(first: int, pages: int) -> list[bytes]:
    digests: list[bytes] = []
    extend(digests, range(first, first + 16 * pages), pages, 16)
    return digests


def test_the_first_pages_of_the_latest_texts_are_told_and_no_more_than_a_report_holds() -> None:
    recent = RecentPrefixes()
    texts = [digests_of(100 * number, 20) for number in range(40)]
    for digests in texts:
        recent.used(digests)
    assert len(recent.marks) == REPORTED
    assert set(map(mark, texts[-1][:FIRST_PAGES])) <= set(recent.marks)
    assert not set(map(mark, texts[0])) & set(recent.marks)
    assert mark(texts[-1][FIRST_PAGES]) not in recent.marks
    recent.forget(texts[-1])
    assert not set(map(mark, texts[-1])) & set(recent.marks)


def test_a_page_is_told_of_once_it_is_computed_and_not_when_its_session_is_admitted() -> None:
    kv, text = KVCacheManager(PagePool(64, 16)), list(range(100, 170))
    session = session_of(1, text, 8, Plan(), kv)
    assert kv.admit(session, 0)
    assert kv.cache.recent.marks == ()
    session.kv_length = 40
    kv.prefixes.share([session])
    assert set(kv.cache.recent.marks) == set(first_marks(text[:33], 16))
    kv.free(session)  # its caller has gone, and the rest of the text is never computed
    assert set(kv.cache.recent.marks) == set(first_marks(text[:33], 16))


async def test_a_verifier_tells_of_what_it_has_until_it_has_given_it_up(tmp_path: Path) -> None:
    prompt = [token % 60 for token in range(50)]
    async with verifier_over(random_target(tmp_path, 64), kv_tokens=16 * 8) as verifier:
        await decode(verifier, DecodeRequest("a", prompt, stopping=Stopping(4)))
        assert set(verifier.engine.statistics().prefixes) == set(first_marks(prompt, 16))
        assert verifier.load().page_size == 16
        await decode(verifier, DecodeRequest("b", prompt[::-1] * 2, stopping=Stopping(4)))  # wants 7 of the 8 pages
        left = set(verifier.engine.statistics().prefixes) & set(first_marks(prompt, 16))
        assert left == set(first_marks(prompt, 16)[:1]), "the end of a text goes first"
