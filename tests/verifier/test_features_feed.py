"""The bookkeeping of features: whatever happens in whatever order, a drafter gets every position once, in order, and no one is buried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest
from specsplit.features import FeatureFormat, FeatureLayout, Features
from specsplit.wire.limits import MAX_FEATURE_TOKENS
from specsplit_verifier.records.feed import Feed, FeedLimits, Overrun, Recipe

LAYOUT = FeatureLayout(3, FeatureFormat.FP8_E4M3)
RECIPE = Recipe((1, 2, 4), "", LAYOUT)


def rows(first: int, count: int) -> Features:
    """Three bytes and a scale of four per token, all of which tell the position."""
    positions = range(first, first + count)
    data = b"".join(bytes([p % 251] * 3) for p in positions)
    return Features(first, count, data, b"".join(p.to_bytes(4, "little") for p in positions))


def feed(first: int = 0, *, window: int = 8, retention: int = 16, event_bytes: int = 28) -> Feed:
    return Feed(RECIPE, first, FeedLimits(window, retention, event_bytes))


class World:
    """A feed, whoever computes features, and a drafter that checks what arrives."""

    def __init__(self, first: int, window: int, retention: int) -> None:
        self.window, self.retention = window, retention
        self.feed = feed(first, window=window, retention=retention)
        self.got = 0

    def receive(self, events: list[Features]) -> None:
        for event in events:
            assert event == rows(self.got, event.count), "gapless, in order, unharmed"
            assert event.count * LAYOUT.bytes_per_token <= 28
            self.got = event.end

    def live(self, count: int) -> None:
        try:
            self.receive(self.feed.add(rows(self.feed.end, count)))
        except Overrun:
            assert self.feed.attached and self.feed.live and self.got < self.feed.end - self.retention
            self.feed.detach()

    def again(self, count: int) -> None:
        missing = self.feed.recompute
        if missing:
            assert missing.start == self.got and missing.stop <= self.feed.end - self.feed.retained
            self.receive(self.feed.add(rows(missing.start, min(count, len(missing)))))

    def read(self, count: int) -> None:
        if self.feed.attached:
            self.receive(self.feed.acknowledge(min(self.feed.read + count, self.got)))

    def attach(self, _: int = 0) -> None:
        if not self.feed.attached:
            self.got = 0
            self.receive(self.feed.attach(self.feed.end))

    def detach(self, _: int) -> None:
        self.feed.detach()

    def check(self) -> None:
        assert self.feed.retained <= self.retention
        if self.feed.attached:
            assert self.feed.sent == self.got and self.feed.sent - self.feed.read <= self.window


@given(st.data(), st.integers(0, 40), st.integers(1, 12), st.integers(4, 20))
def test_a_drafter_gets_every_position_in_order_within_window_and_retention(
    data: st.DataObject, first: int, window: int, retention: int
) -> None:
    world = World(first, window, retention)
    moves = [world.live, world.live, world.again, world.read, world.read, world.attach, world.detach]
    for _ in range(data.draw(st.integers(1, 60))):
        data.draw(st.sampled_from(moves))(data.draw(st.integers(1, 4)))
        world.check()
    world.attach()
    while not world.feed.complete:  # a drafter that reads gets everything in the end
        world.read(window)
        world.again(window)
        world.check()


def test_a_drafter_that_is_there_from_the_start_gets_what_is_computed_at_once() -> None:
    it = feed(event_bytes=1000)
    assert it.attach(root=9) == []
    assert it.add(rows(0, 5)) == [rows(0, 5)]
    assert it.add(rows(5, 4)) == [rows(5, 3)], "the window is 8"
    assert not it.complete and it.catching_up
    assert it.acknowledge(6) == [rows(8, 1)]
    assert it.complete and it.catching_up
    assert it.acknowledge(9) == [] and not it.catching_up


def test_what_is_kept_is_replayed_to_another_drafter() -> None:
    it = feed(event_bytes=1000)
    it.attach(root=0)
    it.add(rows(0, 7))
    it.detach()
    it.add(rows(7, 3))
    assert it.attach(root=10) == [rows(0, 8)]
    assert it.acknowledge(8) == [rows(8, 2)]
    assert not it.recompute


def test_what_is_gone_is_missing_a_window_at_a_time_and_then_joins_what_is_kept() -> None:
    it = feed(20, event_bytes=1000)
    it.add(rows(20, 4))
    assert not it.recompute, "nobody lacks it"
    assert it.attach(root=24) == []
    assert it.recompute == range(8)
    assert it.add(rows(0, 8)) == [rows(0, 8)]
    assert not it.recompute, "the window is full"
    it.acknowledge(8)
    it.add(rows(8, 8))
    it.acknowledge(16)
    assert it.recompute == range(16, 20)
    assert it.add(rows(16, 4)) == [rows(16, 4), rows(20, 4)]
    assert it.complete and not it.recompute


def test_live_features_outrun_a_gap_without_blame() -> None:
    it = feed(20)
    it.attach(root=20)
    for first in range(20, 60, 4):
        assert it.add(rows(first, 4)) == []
    assert it.retained == 16 and it.recompute == range(8)


def test_a_late_joiner_is_not_overrun_before_it_was_sent_all_there_was() -> None:
    it = feed()
    it.add(rows(0, 16))
    it.attach(root=16)
    assert (it.sent, it.live) == (8, False), "the window is 8"
    it.add(rows(16, 12))
    assert it.recompute == range(8, 8), "12 are gone, and what it was sent is still to be read"
    it.acknowledge(8)
    assert it.recompute == range(8, 12)
    it.add(rows(8, 4))
    assert it.sent == 16
    it.acknowledge(16)
    it.acknowledge(24)
    assert it.complete and it.live


def test_a_drafter_that_does_not_read_is_overrun_when_the_first_unsent_position_would_be_dropped() -> None:
    it = feed()
    it.attach(root=0)
    it.add(rows(0, 16))
    it.add(rows(16, 8))  # drops 0..7, which were sent
    with pytest.raises(Overrun, match="has read the features of 0 tokens of 25, and more than 16 are not kept"):
        it.add(rows(24, 1))


def test_a_drafter_slower_than_prefill_gets_the_prompt_by_recompute_and_is_overrun_only_behind_it() -> None:
    it = feed(event_bytes=1000)
    it.attach(root=60)
    got = 0
    for first in range(0, 60, 4):
        got += sum(event.count for event in it.add(rows(first, 4)))
    assert (got, it.live) == (8, False) and it.recompute == range(8, 8)
    while it.catching_up:
        events = it.acknowledge(it.sent)
        if it.recompute:
            events += it.add(rows(it.recompute.start, len(it.recompute)))
        for event in events:
            assert event == rows(got, event.count)
            got = event.end
    assert got == 60 and it.live
    with pytest.raises(Overrun):
        it.add(rows(60, 25))


def test_an_event_has_no_more_tokens_than_a_peer_accepts() -> None:
    limits = FeedLimits(10**6, 10**6, 2**31)
    assert limits.event_tokens(LAYOUT) == MAX_FEATURE_TOKENS
    assert limits.event_tokens(FeatureLayout(2**30)) == 1


def test_features_that_nobody_lacks_any_more_are_let_go() -> None:
    it = feed(20)
    it.attach(root=20)
    missing = it.recompute
    it.detach()
    assert it.add(rows(missing.start, len(missing))) == []
    assert it.retained == 0 and it.end == 20


@pytest.mark.parametrize("position", [2, 6])
def test_a_drafter_cannot_have_read_what_it_was_not_sent_nor_unread_it(position: int) -> None:
    it = feed()
    it.attach(root=5)
    it.add(rows(0, 5))
    it.acknowledge(3)
    with pytest.raises(InvalidRequest, match=rf"features_read.position: is {position}, expected 3\.\.5"):
        it.acknowledge(position)
