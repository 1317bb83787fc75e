"""common.proto of the package smg-grpc-proto: what an operator asks of an engine, and what a gateway hears of its cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from google.protobuf.message import Message
from smg_grpc_proto.generated import common_pb2 as pb  # pyright: ignore[reportMissingTypeStubs]

from specsplit.engine import (
    Block,
    BlockBatch,
    BlockChange,
    BlocksRemoved,
    FlushCache,
    Operation,
    Outcome,
    StartProfile,
    StopProfile,
)
from specsplit.errors import Unsupported
from specsplit.prefix import mark
from specsplit.wire.checks import check
from specsplit.wire.coordinator import refuse_unknown

FlushMessage: TypeAlias = pb.FlushCacheRequest
FlushedMessage: TypeAlias = pb.FlushCacheResponse
StartProfileMessage: TypeAlias = pb.StartProfileRequest
StopProfileMessage: TypeAlias = pb.StopProfileRequest
ProfileMessage: TypeAlias = pb.ProfileResponse
SubscribeMessage: TypeAlias = pb.SubscribeKvEventsRequest
BlockBatchMessage: TypeAlias = pb.KvEventBatch

_OWN_FOLDER: Final = "is not supported: profiles go where profile_dir of the verifier says; leave it out"
PROFILE_NOT_SERVED: Mapping[str, str] = MappingProxyType(
    {
        "output_dir": _OWN_FOLDER,
        "start_step": "is not supported: a profile begins with the next step; leave it out",
        "profile_by_stage": "is not supported: a step reads prompts and decodes at once; leave it out",
    }
)
"""Fields of StartProfileRequest that are refused if they are set, with what is said of them."""


def flush_from_wire(message: pb.FlushCacheRequest) -> FlushCache:
    """Raises InvalidRequest for an unknown field, or a time out of range."""
    _check(message)
    return FlushCache(message.timeout_s)


def start_profile_from_wire(message: pb.StartProfileRequest) -> StartProfile:
    """Raises InvalidRequest for an unknown field or a value out of range, Unsupported for what is not served."""
    _check(message)
    for field, _ in message.ListFields():
        if field.name in PROFILE_NOT_SERVED:
            raise Unsupported(field.name, PROFILE_NOT_SERVED[field.name])
    return StartProfile(
        activities=tuple(message.activities),
        num_steps=message.num_steps if message.HasField("num_steps") else None,
        with_stack=message.with_stack,
        record_shapes=message.record_shapes,
    )


def operation_to_wire(operation: Operation) -> pb.FlushCacheRequest | pb.StartProfileRequest | pb.StopProfileRequest:
    """Write what an operator asks for."""
    match operation:
        case FlushCache():
            return pb.FlushCacheRequest(timeout_s=operation.timeout_s)
        case StartProfile():
            return pb.StartProfileRequest(
                activities=operation.activities,
                num_steps=operation.num_steps,
                with_stack=operation.with_stack,
                record_shapes=operation.record_shapes,
            )
        case StopProfile():
            return pb.StopProfileRequest()


def flushed_to_wire(outcome: Outcome) -> pb.FlushCacheResponse:
    return pb.FlushCacheResponse(success=outcome.done, message=outcome.message)


def profile_to_wire(outcome: Outcome) -> pb.ProfileResponse:
    return pb.ProfileResponse(success=outcome.done, message=outcome.message)


def outcome_from_wire(message: pb.FlushCacheResponse | pb.ProfileResponse) -> Outcome:
    """Raises InvalidRequest for a sentence that is too long, Incompatible if it is no message at all."""
    check(message)
    return Outcome(message.success, message.message)


def subscribe_from_wire(message: pb.SubscribeKvEventsRequest) -> None:
    """Raises InvalidRequest for an unknown field. Wherever the subscriber stood, it is told all that is there first."""
    _check(message)


def block_batch_to_wire(batch: BlockBatch) -> pb.KvEventBatch:
    """Write a batch of changes; a first part of what is there begins with the word that all else is gone."""
    message = pb.KvEventBatch(sequence_number=batch.sequence, timestamp=batch.timestamp)
    if batch.part is not None:
        part = batch.part
        message.snapshot.CopyFrom(pb.KvSnapshotChunk(index=part.index, count=part.parts, blocks=part.blocks))
        if not part.index:
            message.events.append(pb.KvCacheEvent(cleared=pb.KvCacheCleared()))
    for number, change in enumerate(batch.changes, batch.first_event):
        message.events.extend(_events(number if batch.first_event else 0, change))
    return message


def _events(number: int, change: BlockChange) -> Iterable[pb.KvCacheEvent]:
    """Make the events of a change: one of what was removed, or one for each run of stored blocks that follow each other."""
    if isinstance(change, BlocksRemoved):
        removed = pb.KvBlocksRemoved(block_hashes=map(_hash, change.digests), tier=pb.KV_CACHE_TIER_DEVICE)
        yield pb.KvCacheEvent(event_id=number, removed=removed)
        return
    for run in _runs(change.blocks):
        parent = run[0].parent
        stored = pb.KvBlocksStored(
            blocks=map(_block, run),
            parent_block_hash=_hash(parent) if parent else None,
            tier=pb.KV_CACHE_TIER_DEVICE,
            lora_name=run[0].adapter or None,
        )
        yield pb.KvCacheEvent(event_id=number, stored=stored)


def _runs(blocks: Sequence[Block]) -> Iterable[Sequence[Block]]:
    """Cut blocks where one does not follow the one before it."""
    start = 0
    for number in range(1, len(blocks) + 1):
        if number == len(blocks) or blocks[number].parent != blocks[number - 1].digest:
            yield blocks[start:number]
            start = number


def _block(block: Block) -> pb.KvBlock:
    return pb.KvBlock(block_hash=_hash(block.digest), token_ids=block.tokens, block_size=len(block.tokens))


def _hash(digest: bytes) -> int:
    """The first 64 bits of a digest, as the signed number that the protocol has."""
    value = mark(digest)
    return value - 2**64 if value >= 2**63 else value


def _check(message: Message) -> None:
    check(message)
    refuse_unknown(message)
