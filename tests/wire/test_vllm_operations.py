"""What an operator asks of an engine, and what a gateway hears of its cache, in the words of the engine protocol."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import common_pb2 as pb

from specsplit.engine import (
    ACTIVITIES,
    LONGEST_FLUSH_S,
    MOST_PROFILED,
    Block,
    BlockBatch,
    BlocksRemoved,
    BlocksStored,
    FlushCache,
    Outcome,
    SnapshotPart,
    StartProfile,
    StopProfile,
)
from specsplit.errors import InvalidRequest, Unsupported
from specsplit.wire import vllm_operations as wire

starts = st.builds(
    StartProfile,
    st.lists(st.sampled_from(ACTIVITIES)).map(tuple),
    st.none() | st.integers(1, MOST_PROFILED),
    st.booleans(),
    st.booleans(),
)


@given(starts)
def test_what_is_to_be_profiled_comes_back_as_it_was_sent(asked: StartProfile) -> None:
    message = wire.operation_to_wire(asked)
    assert isinstance(message, pb.StartProfileRequest)
    assert wire.start_profile_from_wire(message) == asked


@given(st.floats(0, LONGEST_FLUSH_S, width=32))
def test_the_time_of_a_flush_comes_back_as_it_was_sent(seconds: float) -> None:
    message = wire.operation_to_wire(FlushCache(seconds))
    assert isinstance(message, pb.FlushCacheRequest)
    assert wire.flush_from_wire(message) == FlushCache(seconds)


@given(st.builds(Outcome, st.booleans(), st.text(st.characters(exclude_categories=["Cs"]), max_size=200)))
def test_what_came_of_it_comes_back_as_it_was_sent(outcome: Outcome) -> None:
    assert wire.outcome_from_wire(wire.flushed_to_wire(outcome)) == outcome
    assert wire.outcome_from_wire(wire.profile_to_wire(outcome)) == outcome


def test_the_end_of_a_profile_has_nothing_to_say() -> None:
    assert wire.operation_to_wire(StopProfile()) == pb.StopProfileRequest()


@pytest.mark.parametrize(
    "message",
    [
        pb.StartProfileRequest(output_dir="/tmp"),
        pb.StartProfileRequest(start_step=3),
        pb.StartProfileRequest(profile_by_stage=True),
    ],
)
def test_what_is_not_served_is_refused_by_name(message: pb.StartProfileRequest) -> None:
    ((field, _),) = message.ListFields()
    with pytest.raises(Unsupported, match=f"{field.name}: is not supported"):
        wire.start_profile_from_wire(message)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.StartProfileRequest(num_steps=0), "num_steps"),
        (pb.StartProfileRequest(num_steps=MOST_PROFILED + 1), "num_steps"),
        (pb.StartProfileRequest(activities=["CPU", "MEM"]), "activities"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(message: pb.StartProfileRequest, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wire.start_profile_from_wire(message)
    assert caught.value.field == field


def block(name: str, parent: str = "", tokens: tuple[int, ...] = (1, 2)) -> Block:
    """A block whose digest begins with a letter, which is the first byte of its number."""
    return Block(name.encode() * 32, parent.encode() * 32, tokens)


def number(name: str) -> int:
    return int.from_bytes(name.encode() * 8, "big", signed=True)


def test_blocks_that_follow_one_another_are_one_event_and_others_have_one_of_their_own() -> None:
    stored = BlocksStored([block("a"), block("b", "a", (3, 4)), block("d", "c"), block("e", "d")])
    message = wire.block_batch_to_wire(BlockBatch(9, 1.5, [stored, BlocksRemoved([b"\xff" * 32])], first_event=4))
    assert (message.sequence_number, message.timestamp) == (9, 1.5)
    assert not message.HasField("snapshot")
    first, second, third = message.events
    assert [each.event_id for each in message.events] == [4, 4, 5]
    assert [each.block_hash for each in first.stored.blocks] == [number("a"), number("b")]
    assert [list(each.token_ids) for each in first.stored.blocks] == [[1, 2], [3, 4]]
    assert {each.block_size for each in first.stored.blocks} == {2}
    assert not first.stored.HasField("parent_block_hash")
    assert second.stored.parent_block_hash == number("c")
    assert list(third.removed.block_hashes) == [-1]


def test_the_first_part_of_what_is_there_says_that_nothing_else_is() -> None:
    first = wire.block_batch_to_wire(BlockBatch(7, 1.0, [BlocksStored([block("a")])], part=SnapshotPart(0, 2, 3)))
    assert [each.WhichOneof("data") for each in first.events] == ["cleared", "stored"]
    assert {each.event_id for each in first.events} == {0}
    assert first.snapshot == pb.KvSnapshotChunk(index=0, count=2, blocks=3)
    second = wire.block_batch_to_wire(BlockBatch(8, 1.0, [BlocksStored([block("b")])], part=SnapshotPart(1, 2, 3)))
    assert [each.WhichOneof("data") for each in second.events] == ["stored"]
