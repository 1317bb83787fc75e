"""Features keep the pieces that they came in, and their bytes are made when somebody asks for them."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specsplit.features import FeatureFormat, FeatureLayout, Features, Payload
from specsplit.model.tensors.transfer import HostCopy
from specsplit.wire.drafter import draft_request
from specsplit.wire.packing import packed
from specsplit_verifier.records.feed import Feed, FeedLimits, Recipe, Rows
from specsplit_verifier.schedule.prefix_features import PrefixFeatures
from specsplit_verifier.target.extraction import Made, Wanted, parted

LAYOUTS = [FeatureLayout(3, FeatureFormat.FP8_E4M3), FeatureLayout(2, FeatureFormat.BFLOAT16)]
RECIPE = Recipe((1,), "", LAYOUTS[0])


class Arriving:
    """A step's features on their way, and the event that says that they are there."""

    def __init__(self, tokens: int, layout: FeatureLayout = LAYOUTS[0]) -> None:
        self.waits = 0
        self.bytes = np.arange(tokens * layout.bytes_per_token, dtype=np.uint8).reshape(tokens, layout.bytes_per_token)
        self.copy = HostCopy(lambda: [self.bytes], self)

    def synchronize(self) -> None:
        self.waits += 1


def lazy(first: int, count: int, layout: FeatureLayout) -> tuple[Features, Features]:
    """The same features with bytes that are there, and with bytes that are made."""
    data = bytes((first + i) % 251 for i in range(count) for _ in range(layout.data_bytes))
    scales = b"".join((first + i).to_bytes(4, "little") for i in range(count)) if layout.format.scaled else b""
    there = Features(first, count, data, scales)
    return there, Features(first, count, Payload(len(data), lambda: data), Payload(len(scales), lambda: scales))


@given(st.data(), st.sampled_from(LAYOUTS), st.integers(0, 9))
def test_whatever_is_dropped_and_cut_the_bytes_are_those_of_one_row_end_to_end(
    data: st.DataObject, layout: FeatureLayout, first: int
) -> None:
    rows, text, scales = Rows(layout, first), bytearray(), bytearray()
    per_token, per_scale = layout.data_bytes, layout.bytes_per_token - layout.data_bytes
    cuts: list[tuple[Features, Features]] = []
    for count in data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=8)):
        there, made = lazy(rows.end, count, layout)
        rows.append(data.draw(st.sampled_from([there, made])))
        text += bytes(there.data)
        scales += bytes(there.scales)
        dropped = data.draw(st.integers(0, len(rows) - 1))
        rows.drop(dropped)
        del text[: dropped * per_token], scales[: dropped * per_scale]
        assert len(rows) * per_token == len(text) and rows.end - len(rows) == rows.first
        start = data.draw(st.integers(rows.first, rows.end - 1))
        end = data.draw(st.integers(start + 1, rows.end))
        a, b = start - rows.first, end - rows.first
        own = text[a * per_token : b * per_token], scales[a * per_scale : b * per_scale]
        expected = Features(start, end - start, bytes(own[0]), bytes(own[1]))
        cuts.append((rows.cut(start, end), expected))
        layout.check(cuts[-1][0])
    for found, expected in cuts:  # long after what they were cut from was dropped
        assert found == expected and expected == found and found.nbytes == expected.nbytes


def test_a_piece_that_is_asked_for_is_handed_on_itself_and_all_of_it_can_be_dropped() -> None:
    rows = Rows(LAYOUTS[0], 4)
    pieces = [lazy(4, 3, LAYOUTS[0])[1], lazy(7, 2, LAYOUTS[0])[1]]
    for piece in pieces:
        rows.append(piece)
    assert rows.cut(4, 7) is pieces[0] and rows.cut(7, 9) is pieces[1]
    rows.drop(5)
    assert (len(rows), rows.first, rows.end) == (0, 9, 9)


def made_of(arriving: Arriving, sessions: int, each: int) -> list[Made]:
    group = [Wanted(number, RECIPE, 0, range(number * each, (number + 1) * each)) for number in range(sessions)]
    return parted([group], arriving.copy, lambda want: len(want.at) - 1)


def test_nobody_waits_for_features_before_they_are_serialised() -> None:
    arriving = Arriving(6)
    feeds = [Feed(RECIPE, 0, FeedLimits(8, 16, 1000)) for _ in range(2)]
    events = []
    for number, _, features in made_of(arriving, 2, 3):
        RECIPE.layout.check(features)
        feeds[number].attach(root=0)
        assert [event is features for event in feeds[number].add(features)] == [True]
        events.append((number, features))
        PrefixFeatures(10**6).put(b"page", RECIPE, features)
    messages = list(packed(events, 1000))
    assert arriving.waits == 0, "sizes are known without the bytes"
    (message,) = map(draft_request, messages)
    assert arriving.waits == 4, "data and scales of two sessions"
    sent = [event.features.data + event.features.scales for event in message.events]
    own = [arriving.bytes[:2], arriving.bytes[3:5]]
    assert sent == [rows[:, :3].tobytes() + rows[:, 3:].tobytes() for rows in own]
    draft_request(events)
    assert arriving.waits == 4, "bytes are made once"


def settled_by_rows(features: Features) -> Callable[[], None]:
    rows = Rows(RECIPE.layout, 0)
    rows.append(features)
    return lambda: rows.append(lazy(features.end, 1, RECIPE.layout)[0])


def settled_by_prefix(features: Features) -> Callable[[], None]:
    kept = PrefixFeatures(10**6)
    kept.put(b"page", RECIPE, features)
    kept.make_bytes()  # the step that made them
    return kept.make_bytes


@pytest.mark.parametrize("keep", [settled_by_rows, settled_by_prefix])
def test_what_is_kept_unsent_lets_go_of_its_step_when_the_next_is_over(
    keep: Callable[[Features], Callable[[], None]],
) -> None:
    arriving = Arriving(3)
    ((_, _, features),) = made_of(arriving, 1, 3)
    step_over = keep(features)
    assert arriving.waits == 0
    step_over()
    assert arriving.waits == 2
    bytes(features.data)
    assert arriving.waits == 2, "there is nothing to wait for any more"


def test_a_payload_is_its_bytes_wherever_it_goes() -> None:
    payload = Payload(3, lambda: b"abc")
    assert len(payload) == 3 and "3 bytes" in repr(payload)
    assert payload == b"abc" and [payload] == [b"abc"] and payload not in [b"abd", 3]
    assert hash(payload) == hash(b"abc") and pickle.loads(pickle.dumps(payload)) == b"abc"


def test_features_of_tensors_are_equal_to_the_bytes_of_their_rows() -> None:
    rows = torch.arange(24, dtype=torch.uint8).view(3, 8)
    recipe = Recipe((1,), "", FeatureLayout(4, FeatureFormat.BFLOAT16))
    copy = HostCopy(lambda: [rows.numpy()])
    ((session, _, features),) = parted([[Wanted(7, recipe, 5, range(3))]], copy, lambda want: 2)
    assert (session, features) == (7, Features(5, 2, bytes(range(16))))
