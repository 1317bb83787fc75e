"""Pages are taken as texts grow, the youngest gives its own back when there are too few, and no text is any different for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specsplit import prefix
from specsplit.errors import InvalidRequest
from specsplit.features import FeatureLayout
from specsplit.model.pages.geometry import ALL, Geometry, Layer, Span
from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.model.pages.tables import RowPages, Slots
from specsplit.model.pages.windows import WindowPages
from specsplit.prefix import BLOCK, extend
from specsplit.sessions import DecodeRequest
from specsplit.speculation import Mirror
from specsplit.values import Endpoint, ModelInfo, Plan, Sampling, Stopping, Vocabulary, pages_held
from specsplit_verifier.records.feed import Feed, FeedLimits, Recipe
from specsplit_verifier.schedule import kv_cache_manager
from specsplit_verifier.schedule.kv_cache_manager import KVCacheManager
from specsplit_verifier.schedule.prefix_cache import PrefixCache
from specsplit_verifier.schedule.prefixes import Prefixes
from specsplit_verifier.schedule.scheduler import Scheduler
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.session import Session, StopRule
from specsplit_verifier.sessions.wait_policy import WaitPolicy
from tests.drafter.service_toys import drafter
from tests.support.toys import alphabet_target, random_target
from tests.verifier.conftest import decode, recorded, verifier_over


def session_of(number: int, tokens: list[int], max_tokens: int, plan: Plan, kv: KVCacheManager) -> Session:
    request = DecodeRequest(str(number), tuple(tokens), stopping=Stopping(max_tokens))
    return Session(number, request, plan, StopRule(max_tokens), kv.table(), tokens)


def drafted(session: Session) -> Session:
    """The same with a drafter that lacks the features of all its tokens."""
    mirror = Mirror(session.id, session.tokens[-1], len(session.tokens) - 1, 8, 16)
    feed = Feed(Recipe((1,), "", FeatureLayout(2)), 10_000, FeedLimits(1000, 1000, 1000))
    feed.attach(0)
    session.drafter = DraftSession("drafter", mirror, WaitPolicy(), feed)
    return session


def held(table: PageTable, size: int) -> list[int]:
    """The pages that a table has, in order."""
    return table.pages(table.first // size, len(table) // size).tolist()


class CheckedPrefixes(Prefixes):
    """Whatever it answers of a session that waits is looked up anew, page by page."""

    def known_anew(self, session: Session) -> tuple[int, list[bytes]]:
        """How many pages of a text need not be computed, and those of them that are seen from behind."""
        digests: list[bytes] = []
        extend(digests, session.tokens, self._full(len(session.tokens) - 1), self._pool.page_size)
        for count in range(len(digests), 0, -1):
            seen = digests[self.first_seen(count) : count]
            if self._cache.known(seen) == seen and self.seen_in_windows(digests[:count]):
                return count, seen
        return 0, []

    def seen_in_windows(self, digests: Sequence[bytes]) -> bool:
        windows, size = self._pool.windows, self._pool.page_size
        if windows is None:
            return True
        seen = digests[windows.first_seen(len(digests) * size) // size :]
        return all(windows.has(self._cache.page(digest)) for digest in seen)

    def awaits_anew(self, session: Session, prefilling: Sequence[Session]) -> bool:
        page, size = self.known_anew(session)[0], self._pool.page_size
        if page == self._full(len(session.tokens) - 1):
            return False
        return any(
            self._full(len(other.tokens) - 1) > page
            and other.tokens[: (page + 1) * size] == session.tokens[: (page + 1) * size]
            for other in prefilling
            if other is prefilling[0] or len(other.tokens) - other.kv_length <= len(session.tokens)
        )

    def awaits(self, session: Session, prefilling: Sequence[Session]) -> bool:
        told = super().awaits(session, prefilling)
        assert told == self.awaits_anew(session, prefilling)
        return told


class Checked(KVCacheManager):
    """It admits whom it has room for by what is looked up anew."""

    def __init__(self, pool: PagePool, *, prefix_cache: bool) -> None:
        super().__init__(pool, prefix_cache=prefix_cache)
        self.checked = CheckedPrefixes(pool, self.cache, sharing=prefix_cache, windows=self._windows)
        vars(self)["prefixes"] = self.checked

    def tables(self, running: Iterable[Session]) -> list[PageTable]:
        """All that have pages."""
        return [each.table for each in (*running, *self._replays._by_session.values())]  # pyright: ignore[reportPrivateUsage]

    def admit(self, session: Session, running: int) -> bool:
        _, known = self.checked.known_anew(session)
        wanted = most_pages(self.pool, len(session.tokens), session.plan.num_draft_tokens) + running
        lacking = min(wanted, self.pool.total_pages) - len(known)
        fits = lacking <= self.free_pages - self.cache.idle(known)
        windows = self.pool.windows
        if windows is not None:
            drafts = session.plan.num_draft_tokens
            held = pages_held(len(session.tokens) + drafts, drafts, self.pool.page_size, windows.window)
            fits = fits and min(held, windows.total_pages) <= windows.free_pages
        assert super().admit(session, running) == fits
        return fits


def most_pages(pool: PagePool, length: int, drafts: int) -> int:
    """Pages of a text of which every position, and room for drafts behind it, is held together with what it sees."""
    rooms = range(length + 1)
    size = pool.page_size
    if pool.window is None:
        return pool.pages_for(length + drafts)
    exact = max(pool.pages_for(position + drafts) - pool.first_seen(position) // size for position in rooms)
    bound = min(pool.pages_for(length + drafts), pool.pages_for(pool.window + max(drafts, size)) + 1)
    assert exact <= bound
    return bound


SPANS = st.one_of(
    st.just((ALL,)),
    st.builds(lambda window: (Span(window=window),), st.integers(1, 9)),
    st.builds(lambda chunk: (Span(chunk=chunk),), st.integers(1, 9)),
    st.just((Span(window=3), Span(chunk=6))),
    st.builds(lambda window: (ALL, Span(window=window)), st.integers(1, 9)),
    st.builds(lambda chunk: (ALL, Span(chunk=chunk)), st.integers(1, 9)),
    st.just((Span(chunk=5), ALL, Span(window=3))),
)


def pool_of(pages: int, page_size: int, spans: tuple[Span, ...], more: int) -> PagePool:
    """A pool, with window pages for the layers with a bound if others see all tokens: `more` than one session needs at least."""
    bounded = Geometry(tuple(Layer(1, 1, 1, 1, span) for span in spans)).bounded
    if not bounded:
        return PagePool(pages, page_size, spans)
    window = max(span.size or 0 for span in bounded)
    count = pages_held(1 << 40, 1, page_size, window) + 1 + more
    return PagePool(pages, page_size, spans, WindowPages(pages, count, page_size, bounded))


class Pages(RuleBasedStateMachine):
    """Sessions come, are admitted, step as the engine would have them, end and are cancelled, over a pool that is too small.

    What the KV of a slot was computed of is noted: the token and all before it.
    """

    @initialize(
        pages=st.integers(2, 24),
        page_size=st.sampled_from([1, 4]),
        cache=st.booleans(),
        spans=SPANS,
        more=st.integers(0, 12),
    )
    def begin(self, pages: int, page_size: int, cache: bool, spans: tuple[Span, ...], more: int) -> None:
        self.kv = Checked(pool_of(pages, page_size, spans, more), prefix_cache=cache)
        self.in_window: dict[int, tuple[int, ...]] = {}
        info = ModelInfo("toy", Vocabulary(16), 2048)
        self.scheduler = Scheduler(info, self.kv, max_sessions=4)
        self.content: dict[int, tuple[int, ...]] = {}
        self.arrived = 0

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=6).map(lambda tokens: ([1] * 8 + tokens)[-14:]),
        start=st.integers(0, 12),
        max_tokens=st.integers(1, 30),
        drafts=st.integers(1, 6),
        with_drafter=st.booleans(),
    )
    def arrive(self, prompt: list[int], start: int, max_tokens: int, drafts: int, with_drafter: bool) -> None:
        self.arrived += 1
        prompt = prompt[min(start, len(prompt) - 1) :]
        session = session_of(self.arrived, prompt, max_tokens, Plan(num_draft_tokens=drafts), self.kv)
        if with_drafter:
            drafted(session)
        if len(self.scheduler.waiting) < 4:
            try:
                self.scheduler.submit(session)
            except InvalidRequest:
                assert most_pages(self.kv.pool, len(prompt) + max_tokens, drafts) > self.kv.pool.total_pages

    @rule(chunk=st.integers(1, 9), accepted=st.integers(0, 5), again=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.0]))
    def step(self, chunk: int, accepted: int, again: float) -> None:
        """All that are running step: what is missing is computed, and of those that decode some drafts are accepted.

        Of what is known the part from `again` on is computed once more.
        """
        scheduler = self.scheduler
        scheduler.admit()
        oldest = next(iter(scheduler.running.values()), None)
        while not self.kv.extend(self.decoding(chunk), scheduler.running.values(), self.prefilling(chunk)):
            assert scheduler.preempt() is not oldest, "it always goes on"
        assert scheduler.running or not scheduler.waiting
        decoding, everyone = self.decoding(chunk), list(scheduler.running.values())
        wanted = {
            session: range(int(session.kv_length * again), session.kv_length) for session in everyone if again < 1
        }
        for session, positions, pages in self.kv.scratch(list(wanted.items())):
            slots, size, asked = self.slots_of(pages), self.kv.pool.page_size, wanted[session]
            start = asked.start // size * size
            own = self.slots_of(session.table.upto(len(session.table))).tolist()
            if self.kept_from(session.table) <= self.first_seen(start):
                assert positions == range(start, pages.length)
                assert pages.length == asked.stop or 0 in self.free_pages_of_each_kind(), "none is left"
                assert slots[: positions.start].tolist() == own[: positions.start]
            else:
                assert positions.start <= asked.start and 0 < len(positions) <= max(size, len(asked))
                assert positions.stop == pages.length <= asked.stop
            assert not {*slots[positions.start :].tolist()} & {*own[session.table.first :]}
            self.read(session, positions.start, slots)
            self.write(session, positions, slots)
        for session in everyone:
            if session.prefilling or session not in decoding:
                wished = min(chunk, session.unread)
                self.compute(session, min(wished, len(session.table) - session.kv_length))
            if session in decoding:
                self.decode(session, accepted)
        self.kv.end_step(scheduler.running.values())

    def free_pages_of_each_kind(self) -> list[int]:
        pool = self.kv.pool
        return [pool.free_pages] if pool.windows is None else [pool.free_pages, pool.windows.free_pages]

    def slots_of(self, pages: RowPages) -> Slots:
        size = self.kv.pool.page_size
        return np.add.outer(self.kv.pool.tables.listed(pages) * size, np.arange(size)).reshape(-1)[: pages.length]

    def decode(self, session: Session, accepted: int) -> None:
        assert session.lookahead_slots >= 1
        count = 1 + min(accepted, session.lookahead_slots - 1, session.width - 1)
        session.tokens += [accepted % 2] * count
        self.compute(session, count)
        if session.generated >= session.stops.max_tokens:
            self.scheduler.remove(session)

    def compute(self, session: Session, count: int) -> None:
        positions = range(session.kv_length, session.kv_length + count)
        assert count > 0 or not session.prefilling, "it always goes on"
        if count:
            self.write(session, positions, self.slots_of(session.table.upto(positions.stop)))
        session.kv_length += count

    def kept_from(self, table: PageTable) -> int:
        """First token that a table has in all layers."""
        return table.first if self.kv.pool.windows is None else table.first_in_window

    def first_seen(self, position: int) -> int:
        """First token that is seen from a position in layers with a bound, or else in all."""
        return (self.kv.pool.windows or self.kv.pool).first_seen(position)

    def read(self, session: Session, position: int, slots: Slots) -> None:
        """What a token at this position of a text sees was computed of that text."""
        windows = self.kv.pool.windows
        for seen in range(self.kv.pool.first_seen(position), position):
            assert self.content[int(slots[seen])] == tuple(session.tokens[: seen + 1])
        if windows is not None:
            for seen in range(windows.first_seen(position), position):
                (slot,) = windows.slots_of(slots[seen : seen + 1]).tolist()
                assert self.in_window[slot] == tuple(session.tokens[: seen + 1])

    def write(self, session: Session, positions: range, slots: Slots) -> None:
        for position in positions:
            slot = int(slots[position])
            assert self.kv.pool.holders(slot // self.kv.pool.page_size) == 1, "nobody else can read it"
            self.content[slot] = tuple(session.tokens[: position + 1])
            windows = self.kv.pool.windows
            if windows is not None:
                assert windows.has(slot // self.kv.pool.page_size), "it has a window page to be written to"
                (slot,) = windows.slots_of(np.array([slot])).tolist()
                self.in_window[slot] = self.content[int(slots[position])]

    def prefilling(self, chunk: int) -> list[tuple[Session, int]]:
        """Those that prefill, and how much of their texts they may read."""
        there = [session for session in self.scheduler.running.values() if session.prefilling]
        return [(session, min(chunk, len(session.tokens) - 1 - session.kv_length)) for session in there]

    def decoding(self, chunk: int) -> list[Session]:
        """Those whose prompt is read, or is so by a step that reads a chunk of it."""
        reads = chunk if self.kv.roots_join else 0
        return [session for session in self.scheduler.running.values() if session.unread <= reads]

    @rule(data=st.data(), sound=st.booleans())
    def cancel(self, data: st.DataObject, sound: bool) -> None:
        there = [*self.scheduler.running.values(), *self.scheduler.waiting]
        if there:
            self.scheduler.remove(data.draw(st.sampled_from(there)), sound=sound)

    @rule(drafts=st.integers(1, 40))
    def replan(self, drafts: int) -> None:
        for session in (*self.scheduler.running.values(), *self.scheduler.waiting):
            session.plan = Plan(num_draft_tokens=drafts)

    @invariant()
    def all_pages_are_accounted_for(self) -> None:
        if not hasattr(self, "kv"):
            return
        pool, tables = self.kv.pool, self.kv.tables(self.scheduler.running.values())
        uses = Counter(page for table in tables for page in held(table, pool.page_size))
        holders = [pool.holders(page) for page in range(pool.total_pages)]
        assert all(count - uses[page] in (0, 1) for page, count in enumerate(holders)), "the cache is one holder"
        assert holders.count(0) == pool.free_pages
        assert sum(1 for page, count in enumerate(holders) if count and not uses[page]) == (
            self.kv.free_pages - pool.free_pages
        )
        if pool.window is not None:
            most = pool.pages_for(pool.window + 40) + 1
            assert all(len(held(table, pool.page_size)) <= most for table in tables), "however long the text is"
        if pool.windows is not None:
            self.all_window_pages_are_accounted_for(pool, pool.windows)
        assert not any(len(session.table) or session.kv_length for session in self.scheduler.waiting)
        assert len(self.kv.cache.recent.marks) <= sum(holders) - uses.total(), (
            "what the cache does not hold is not told of"
        )

    def all_window_pages_are_accounted_for(self, pool: PagePool, windows: WindowPages) -> None:
        there = [page for page in range(pool.total_pages) if windows.has(page)]
        own = windows.slots_of(np.array(there, dtype=np.int64) * pool.page_size) // pool.page_size
        assert len(set(own.tolist())) == len(there) <= windows.total_pages, "no two pages have the same"
        assert all(pool.holders(page) for page in there), "none is kept for a free page"
        held = windows.total_pages - windows.free_pages
        assert held <= len(there)
        for session in self.scheduler.running.values():
            table = session.table
            seen = range(table.first_in_window // pool.page_size, pool.pages_for(session.kv_length))
            assert all(map(windows.has, table.pages(seen.start, max(seen.start, seen.stop)).tolist()))
            most = pages_held(1 << 40, 40, pool.page_size, windows.window) + pool.pages_for(9)
            assert len(table) // pool.page_size - seen.start <= most or session.prefilling

    @invariant()
    def what_is_remembered_of_a_session_that_waits_is_so(self) -> None:
        if hasattr(self, "kv"):
            for session in self.scheduler.waiting:
                self.kv.prefixes.awaits(
                    session, [other for other in self.scheduler.running.values() if other.prefilling]
                )

    @invariant()
    def what_a_session_reads_was_computed_of_its_own_text(self) -> None:
        if not hasattr(self, "kv"):
            return
        for session in self.scheduler.running.values():
            if session.kv_length:
                assert self.kept_from(session.table) <= self.first_seen(session.kv_length)
                self.read(session, session.kv_length, self.slots_of(session.table.upto(session.kv_length)))
            assert session.table.first <= self.kv.pool.first_seen(session.kv_length)

    def teardown(self) -> None:
        if hasattr(self, "kv"):
            for _ in range(1000):
                if not (self.scheduler.running or self.scheduler.waiting):
                    break
                self.step(9, 0, 1.0)
            assert self.kv.free_pages == self.kv.pool.total_pages, "every session comes to its end"
            windows = self.kv.pool.windows
            assert windows is None or windows.free_pages == windows.total_pages


TestPages = Pages.TestCase


def test_what_is_computed_again_begins_anew_where_the_chunk_that_it_needs_is_held_no_more() -> None:
    kv = KVCacheManager(pool_of(16, 4, (ALL, Span(chunk=8)), 4), prefix_cache=False)
    session = drafted(session_of(1, [1] * 25, 8, Plan(num_draft_tokens=2), kv))
    assert kv.admit(session, 0)
    for _ in range(6):
        assert kv.extend([], [session], [(session, 4)])
        session.kv_length += 4
        kv.end_step([session])
    assert kv.extend([session], [session])

    def computed(wanted: range) -> range:
        ((_, positions, _),) = kv.scratch([(session, wanted)])
        kv.end_step([session])
        return positions

    assert [computed(range(20, 24)) for _ in range(2)] == [range(4), range(4, 8)]
    assert computed(range(4, 8)) == range(4)


class Looked(PrefixCache):
    """Counts the pages of waiting texts that are looked at."""

    pages = 0

    def first_unknown(self, digests: Sequence[bytes], start: int, stop: int) -> int:
        found = super().first_unknown(digests, start, stop)
        self.pages += min(found + 1, stop) - start
        return found

    def idle(self, digests: Sequence[bytes]) -> int:
        self.pages += len(digests)
        return super().idle(digests)


def looked(scheduler: Scheduler) -> Looked:
    assert isinstance(scheduler.kv.cache, Looked)
    return scheduler.kv.cache


def test_a_step_looks_at_new_pages_alone_of_texts_that_wait_and_equal_ones_are_digested_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digested = 0

    def counted(content: bytes) -> object:
        nonlocal digested
        digested += 1
        return sha256(content)

    monkeypatch.setattr(prefix, "sha256", counted)
    monkeypatch.setattr(kv_cache_manager, "PrefixCache", Looked)
    scheduler = Scheduler(ModelInfo("toy", Vocabulary(16), 9000), manager(8000), max_sessions=64)
    cache = looked(scheduler)
    text, count, chunk = [*range(4000)], 32, 64  # a thousand pages
    for number in range(count):
        scheduler.submit(session_of(number, [*text, number], 5, Plan(), scheduler.kv))
    (first,) = scheduler.admit()
    assert max(digested, cache.pages) <= count * BLOCK
    while first.kv_length + chunk < len(text):
        first.kv_length += chunk
        cache.pages = 0
        assert scheduler.admit() == []
        assert cache.pages <= (count - 1) * (chunk // 4 + 2)
    assert digested <= 1000 + count * BLOCK, "the last block of each, which is no whole one, is its own"
    first.kv_length = len(text)
    assert len(scheduler.admit()) == count - 1


def test_a_step_looks_at_no_page_of_a_text_that_still_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache_manager, "PrefixCache", Looked)
    scheduler = Scheduler(ModelInfo("toy", Vocabulary(16), 9000), manager(120), max_sessions=8)
    cache = looked(scheduler)
    for number, tokens in enumerate([[1] * 201, [2] * 241, [1] * 321]):
        scheduler.submit(session_of(number, tokens, 5, Plan(num_draft_tokens=1), scheduler.kv))
        scheduler.admit()
        if number == 0:
            scheduler.running[0].kv_length = 200
            scheduler.kv.prefixes.share(scheduler.running.values())
            scheduler.remove(scheduler.running[0])
    assert [session.id for session in scheduler.waiting] == [2], "its first fifty pages are here, idle"
    cache.pages = 0
    assert scheduler.admit() == []
    assert cache.pages <= 2, "its first unknown page, when it is asked what it awaits, and when it is to be admitted"


def manager(pages: int) -> KVCacheManager:
    return KVCacheManager(PagePool(pages, 4))


def test_a_session_that_needs_no_new_page_takes_none() -> None:
    kv = manager(8)
    session = session_of(1, [1] * 5, 10, Plan(num_draft_tokens=3), kv)
    assert kv.admit(session, 0)
    session.kv_length = 4
    before = session.table.slots(0, 8).tolist()
    assert kv.extend([session], [session])
    assert session.table.slots(0, len(session.table)).tolist() == before


def test_drafts_are_fewer_where_pages_are_few_and_make_room_for_a_root() -> None:
    kv = manager(4)
    older, younger = (drafted(session_of(number, [number] * 5, 9, Plan(num_draft_tokens=8), kv)) for number in (1, 2))
    older.table.reserve(5)
    older.kv_length = 4
    assert kv.extend([older], [older])
    assert (older.lookahead_slots, len(older.table)) == (8, 12)
    younger.table.reserve(4)
    younger.kv_length = 4
    assert kv.free_pages == 0
    assert kv.extend([younger], [older, younger]), "the room for drafts of the older one is taken back"
    assert (older.lookahead_slots, younger.lookahead_slots) == (4, 4)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random target."""
    return random_target(tmp_path_factory.mktemp("random"), vocab_size=264)


def requests(drafters: list[Endpoint | None], sampling: Sampling) -> list[DecodeRequest]:
    """Six, of 3 to 33 tokens, that write 60 each."""
    prompts = [[(7 * number + 5 * i * i) % 60 for i in range(3 + 6 * number)] for number in range(6)]
    return [
        DecodeRequest(str(number), prompt, sampling, Stopping(60, ignore_eos=True), drafter=drafters[number % len(drafters)])
        for number, prompt in enumerate(prompts)
    ]  # fmt: skip


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, top_p=0.95, seed=11)])
@pytest.mark.parametrize("with_drafter", [False, True])
async def test_preempted_sessions_write_what_they_would_have_written(
    target: Path, sampling: Sampling, with_drafter: bool
) -> None:
    async with drafter() as (server, _, _):
        wanted = requests([Endpoint("ngram", server.bound) if with_drafter else None], sampling)
        async with verifier_over(target) as verifier:
            truth = [(await decode(verifier, request))[0] for request in wanted]
        serial = {"draft_ahead": False, "wait_budget_us": 5_000_000}  # full trees, however busy the machine
        async with verifier_over(target, kv_tokens=16 * 9, **serial) as verifier:
            steps = recorded(verifier)
            ends = await asyncio.gather(*(decode(verifier, request) for request in wanted))
    assert [tokens for tokens, _ in ends] == truth
    assert sum(step.kv.preemptions for step in steps) > 0
    assert [end.usage.prompt_tokens for _, end in ends] == [len(request.tokens) for request in wanted]
    assert not with_drafter or sum(end.speculation.accepted for _, end in ends) > 0


async def test_requests_without_max_tokens_run_side_by_side(tmp_path: Path) -> None:
    """The context is longer than the pool, so each of them may take all of it."""
    prompts = [[letter] * 20 for letter in b"abc"]
    async with verifier_over(alphabet_target(tmp_path, max_context=32768)) as verifier:
        steps = recorded(verifier)
        running = [verifier.decode(DecodeRequest(str(prompt), prompt)) for prompt in prompts]
        await asyncio.gather(*(anext(events) for events in running))
        load = verifier.load()
        await asyncio.gather(*(events.aclose() for events in running))
    assert max(len(step.sessions) for step in steps) == 3
    assert (load.sessions, load.waiting) == (3, 0)
    assert load.free_pages > load.total_pages / 2
