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
    """A feed, whoever computes features, and a drafter that checks what arrives. What the feed should know is kept beside it."""

    def __init__(self, first: int, window: int, retention: int) -> None:
        self.first, self.window, self.retention = first, window, retention
        self.feed = feed(first, window=window, retention=retention)
        self.got = self.root = 0
        self.live = self.resting = False
        self.asked = range(0)
        """What somebody was last asked to compute again."""

    @property
    def kept(self) -> int:
        """The first position that is kept."""
        return max(self.first, self.feed.end - self.retention)

    def receive(self, events: list[Features]) -> None:
        assert len(events) <= sum(event.count for event in events) // 4 + 2, "in as few events as hold them"
        for event in events:
            assert event == rows(self.got, event.count), "gapless, in order, unharmed"
            assert event.count * LAYOUT.bytes_per_token <= 28
            self.got = event.end
        self.live |= self.got == self.feed.end and self.feed.read >= self.root and not self.resting

    def compute(self, count: int) -> None:
        """Live features outrun nobody who still catches up: only one that had been sent all there was has to keep up."""
        read, end, made = self.feed.read, self.feed.end + count, rows(self.feed.end, count)
        if self.feed.attached and self.live and self.got < end - self.retention:
            told = f"has read the features of {read} tokens of {end}, and more than {self.retention} are not kept"
            with pytest.raises(Overrun, match=told):
                self.feed.add(made)
            self.feed.detach()
        else:
            (self.receive if self.feed.attached else self.nobody)(self.feed.add(made))

    def nobody(self, events: list[Features]) -> None:
        assert events == [], "there is nobody to send to"

    def again(self, count: int) -> None:
        """Some of what is missing is computed again; it comes to nothing if whoever lacked it has gone meanwhile."""
        missing = self.asked = self.feed.recompute or self.asked
        if not self.feed.attached and missing:
            self.nobody(self.feed.add(rows(missing.start, len(missing))))
        elif missing := self.feed.recompute:
            self.receive(self.feed.add(rows(missing.start, min(count, len(missing)))))

    def read(self, count: int) -> None:
        if self.feed.attached:
            self.receive(self.feed.acknowledge(min(self.feed.read + count, self.got)))

    def attach(self, late: int = 1) -> None:
        """A drafter begins at a session; `late`: 1 if all before its root is computed, more if there is some of it to come."""
        if not self.feed.attached:
            self.got, self.live, self.resting = 0, False, False
            self.root = self.feed.end + 4 * (late - 1)
            self.receive(self.feed.attach(self.root))

    def detach(self, _: int) -> None:
        self.feed.detach()

    def rest(self, count: int) -> None:
        if self.feed.attached:
            self.resting, self.live = count % 2 == 0, False
            self.feed.rest(resting=self.resting)

    def check(self) -> None:
        it = self.feed
        assert it.retained == it.end - self.kept
        if not it.attached:
            assert not it.recompute, "nobody lacks anything"
            return
        assert it.sent == self.got and it.sent - it.read <= self.window
        within = min(it.end, it.read + self.window)
        assert it.sent == within or it.sent < self.kept, "what is kept is sent as far as the window reaches"
        gone = range(it.sent, max(it.sent, min(self.kept, it.read + self.window)))
        assert it.recompute == (range(0) if self.resting else gone), "what is gone, a window at a time"
        assert (it.complete, it.catching_up, it.live) == (it.sent == it.end, it.read < self.root, self.live)


@given(st.data(), st.integers(0, 40), st.integers(1, 12), st.integers(4, 20))
def test_a_drafter_gets_every_position_in_order_within_window_and_retention(
    data: st.DataObject, first: int, window: int, retention: int
) -> None:
    world = World(first, window, retention)
    moves = [*[world.compute] * 2, *[world.again] * 2, *[world.read] * 2, world.attach, world.detach, world.rest]
    for _ in range(data.draw(st.integers(1, 60))):
        data.draw(st.sampled_from(moves))(data.draw(st.integers(1, 4)))
        world.check()
    world.attach()
    world.rest(1)
    while not world.feed.complete:  # a drafter that reads gets everything in the end
        world.read(window)
        world.again(window)
        world.check()


def test_an_event_has_no_more_tokens_than_a_peer_accepts() -> None:
    limits = FeedLimits(10**6, 10**6, 2**31)
    assert limits.event_tokens(LAYOUT) == MAX_FEATURE_TOKENS
    assert limits.event_tokens(FeatureLayout(2**30)) == 1


@pytest.mark.parametrize("position", [2, 6])
def test_a_drafter_cannot_have_read_what_it_was_not_sent_nor_unread_it(position: int) -> None:
    it = feed()
    it.attach(root=5)
    it.add(rows(0, 5))
    it.acknowledge(3)
    with pytest.raises(InvalidRequest, match=rf"features_read.position: is {position}, expected 3\.\.5"):
        it.acknowledge(position)
