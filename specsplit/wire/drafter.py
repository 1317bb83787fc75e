"""drafter.proto: what a verifier and a drafter say to each other about sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, NoReturn

from specsplit.draft_events import Close, FeaturesRead, Open, Refuse, ToDrafter, ToVerifier
from specsplit.errors import InvalidRequest
from specsplit.features import FeatureLayout, Features
from specsplit.speculation import Commit, Grow
from specsplit.v1 import drafter_pb2 as pb
from specsplit.values import DrafterInfo, Plan
from specsplit.wire import common, hosts
from specsplit.wire.checks import check
from specsplit.wire.events import read_events
from specsplit.wire.limits import (
    MAX_EVENTS,
    MAX_FEATURE_TOKENS,
    MAX_NODES,
    check_count,
)
from specsplit.wire.reading import intact, response_reader

_read_draft_response = response_reader(pb.DraftResponse.FromString)


def draft_request(events: Iterable[tuple[int, ToDrafter]]) -> pb.DraftRequest:
    """(session id, event) pairs as one message."""
    message = pb.DraftRequest()
    for session, event in events:
        _event_into(message.events.add(session_id=session), event)
    return message


def _event_into(message: pb.DraftRequestEvent, event: ToDrafter) -> None:
    match event:
        case Commit():
            commit_into(message.commit, event)
        case Features():
            message.MergeFrom(pb.DraftRequestEvent(features=features_to_wire(event)))
        case Open():
            message.MergeFrom(pb.DraftRequestEvent(open=open_to_wire(event)))
        case Plan():
            message.MergeFrom(pb.DraftRequestEvent(plan=common.plan_to_wire(event)))
        case Close():
            message.close.SetInParent()


def draft_request_events(message: pb.DraftRequest) -> list[tuple[int, ToDrafter | InvalidRequest]]:
    """The events of one message; a malformed one comes out as the InvalidRequest that says why, so that only its session ends.

    Raises InvalidRequest for too many events, or too many malformed ones.
    """
    return read_events(intact(message).events, _request_from_wire)


def _request_from_wire(event: pb.DraftRequestEvent) -> ToDrafter:
    match event.WhichOneof("event"):
        case "open":
            return open_from_wire(event.open)
        case "commit":
            return commit_from_wire(event.commit)
        case "features":
            return features_from_wire(event.features)
        case "plan":
            return common.plan_from_wire(event.plan).over(Plan())
        case "close":
            return Close()
        case _:
            raise InvalidRequest("event", "is absent, expected open, commit, features, plan or close")


def draft_response(events: Iterable[tuple[int, ToVerifier]]) -> pb.DraftResponse:
    """(session id, event) pairs as one message."""
    return pb.DraftResponse(events=[_response_event(session, event) for session, event in events])


def _response_event(session: int, event: ToVerifier) -> pb.DraftResponseEvent:
    match event:
        case Grow():
            return pb.DraftResponseEvent(session_id=session, grow=grow_to_wire(event))
        case FeaturesRead():
            read = pb.FeaturesReadEvent(position=event.position)
            return pb.DraftResponseEvent(session_id=session, features_read=read)
        case Refuse():
            return pb.DraftResponseEvent(session_id=session, refuse=refuse_to_wire(event))


class Bulk(NamedTuple):
    """How much there is to one message of a drafter, which costs little to tell before its events are read."""

    events: int
    empty: int
    """Grows without nodes and new edges, and refusals."""
    most_nodes: int
    """Nodes and new edges of the largest of its grows."""
    last_session: int
    """The highest session id."""


def bulk_of(message: pb.DraftResponse) -> Bulk:
    """Raises InvalidRequest for too many events, and Incompatible if the message is none at all."""
    events = intact(message).events
    check_count("events", events, MAX_EVENTS)
    nodes = [len(event.grow.ids) + len(event.grow.rescored_ids) for event in events if event.HasField("grow")]
    refusals = sum(event.HasField("refuse") for event in events)
    last_session = max((event.session_id for event in events), default=0)
    return Bulk(len(events), nodes.count(0) + refusals, max(nodes, default=0), last_session)


def draft_response_message(data: bytes) -> pb.DraftResponse:
    """A drafter's message as it came, to be looked at with `bulk_of` and `draft_response_events`; these raise what is wrong with it."""
    return _read_draft_response(data)


def draft_response_events(message: pb.DraftResponse) -> list[tuple[int, ToVerifier | InvalidRequest]]:
    """The events of one message; a malformed one comes out as the InvalidRequest that says why.

    Raises InvalidRequest for too many events, or too many malformed ones, and Incompatible if the message is none at all.
    """
    return read_events(intact(message).events, _response_from_wire)


def _response_from_wire(event: pb.DraftResponseEvent) -> ToVerifier:
    match event.WhichOneof("event"):
        case "grow":
            return grow_from_wire(event.grow)
        case "features_read":
            return FeaturesRead(event.features_read.position)
        case "refuse":
            return refuse_from_wire(event.refuse)
        case _:
            raise InvalidRequest("event", "is absent, expected grow, features_read or refuse")


def open_to_wire(event: Open) -> pb.OpenEvent:
    """Every field set."""
    message = pb.OpenEvent(
        token_ids=event.tokens,
        sampling=common.sampling_to_wire(event.sampling),
        plan=common.plan_to_wire(event.plan),
        vocabulary=common.vocabulary_to_wire(event.vocabulary),
        max_nodes=event.max_nodes,
        traceparent=event.traceparent,
        features=common.layout_to_wire(event.features) if event.features.width else None,
        prompt_tokens=event.prompt_tokens,
        step_us=event.step_us,
        scope=event.scope,
        host=hosts.host_to_wire(event.host),
        end_token_ids=event.ends,
    )
    if event.constraint is not None:
        common.constraint_into(message.constraint, event.constraint)
    return message


def open_from_wire(message: pb.OpenEvent) -> Open:
    """Raises InvalidRequest for no tokens, tokens outside the vocabulary, or a cap out of range."""
    vocabulary = common.vocabulary_from_wire(message.vocabulary)
    if not message.token_ids:
        raise InvalidRequest("open.token_ids", "is empty, expected at least the root")
    common.check_tokens("open.token_ids", message.token_ids, vocabulary.size)
    if not 0 < message.max_nodes <= MAX_NODES:
        raise InvalidRequest("open.max_nodes", f"is {message.max_nodes}, expected 1..{MAX_NODES}")
    if message.prompt_tokens > len(message.token_ids):
        tokens = len(message.token_ids)
        raise InvalidRequest("open.prompt_tokens", f"is {message.prompt_tokens}, expected at most the {tokens} tokens")
    sampling = common.sampling_from_wire(message.sampling)
    common.check_bias("open.sampling.logit_bias", sampling, vocabulary.size)
    common.check_tokens("open.end_token_ids", message.end_token_ids, vocabulary.size)
    return Open(
        tuple(message.token_ids),
        sampling,
        common.plan_from_wire(message.plan).over(Plan()),
        vocabulary,
        message.max_nodes,
        message.traceparent,
        common.layout_from_wire(message.features) if message.HasField("features") else FeatureLayout(),
        message.prompt_tokens,
        message.step_us,
        message.scope,
        hosts.host_from_wire(message.host),
        common.constraint_from_wire(message.constraint),
        tuple(message.end_token_ids),
    )


def commit_into(message: pb.CommitEvent, event: Commit) -> None:
    """Write a commit into a message that is inside another."""
    message.number, message.deepest_id = event.number, event.deepest
    message.token_ids.extend(event.tokens)
    message.step_us, message.seen_id, message.floor = event.step_us, event.seen, event.floor


def commit_from_wire(message: pb.CommitEvent) -> Commit:
    """Raises InvalidRequest for a commit of nothing, number 0, or a floor that is no probability below 1."""
    if not message.token_ids:
        raise InvalidRequest("commit.token_ids", "is empty, expected at least the bonus")
    if message.number == 0:
        raise InvalidRequest("commit.number", "is 0, expected a count from 1")
    if not 0.0 <= message.floor < 1.0:
        raise InvalidRequest("commit.floor", f"is {message.floor}, expected at least 0 and below 1")
    tokens = tuple(message.token_ids)
    return Commit(message.number, message.deepest_id, tokens, message.step_us, message.seen_id, message.floor)


def features_to_wire(event: Features) -> pb.FeaturesEvent:
    return pb.FeaturesEvent(first=event.first, count=event.count, data=bytes(event.data), scales=bytes(event.scales))


def features_from_wire(message: pb.FeaturesEvent) -> Features:
    """Raises InvalidRequest for no tokens or too many; whether the bytes fit the session's layout is for `FeatureLayout.check`."""
    if not 0 < message.count <= MAX_FEATURE_TOKENS:
        raise InvalidRequest("features.count", f"is {message.count}, expected 1..{MAX_FEATURE_TOKENS}")
    return Features(message.first, message.count, message.data, message.scales)


def grow_to_wire(event: Grow) -> pb.GrowEvent:
    """Edges become float32."""
    return pb.GrowEvent(
        commits=event.commits,
        ids=event.ids,
        parents=event.parents,
        token_ids=event.tokens,
        edges=event.edges,
        resting=event.resting,
        rescored_ids=event.rescored,
        new_edges=event.new_edges,
    )


def grow_from_wire(message: pb.GrowEvent) -> Grow:
    """Raises InvalidRequest for arrays of unequal length; whether they are a tree is for the mirror that they are meant for."""
    ids, parents, tokens = (tuple(each[:]) for each in (message.ids, message.parents, message.token_ids))
    edges = tuple(message.edges[:])  # a slice is copied twice as fast
    if not len(ids) == len(parents) == len(tokens) == len(edges):
        _refuse_lengths("ids", len(ids), {"parents": len(parents), "token_ids": len(tokens), "edges": len(edges)})
    rescored, new_edges = tuple(message.rescored_ids[:]), tuple(message.new_edges[:])
    if len(rescored) != len(new_edges):
        _refuse_lengths("rescored_ids", len(rescored), {"new_edges": len(new_edges)})
    return Grow(message.commits, ids, parents, tokens, edges, message.resting, rescored, new_edges)


def _refuse_lengths(first: str, expected: int, counts: Mapping[str, int]) -> NoReturn:
    name, count = next((name, count) for name, count in counts.items() if count != expected)
    raise InvalidRequest(f"grow.{name}", f"has {count} entries, expected {expected} as in grow.{first}")


def refuse_to_wire(event: Refuse) -> pb.RefuseEvent:
    return pb.RefuseEvent(code=event.code, message=event.message)


def refuse_from_wire(message: pb.RefuseEvent) -> Refuse:
    """Raises InvalidRequest for code OK."""
    if message.code == 0:
        raise InvalidRequest("refuse.code", "is 0 (OK), expected an error code")
    return Refuse(message.code, message.message)


def drafter_info_request() -> pb.GetDrafterInfoRequest:
    """The empty question."""
    return pb.GetDrafterInfoRequest()


def drafter_info_to_wire(info: DrafterInfo) -> pb.GetDrafterInfoResponse:
    return pb.GetDrafterInfoResponse(info=common.drafter_to_wire(info))


def drafter_info_from_wire(message: pb.GetDrafterInfoResponse) -> DrafterInfo:
    """Raises InvalidRequest for a kind this version does not know, Incompatible for what is no answer at all."""
    check(message)
    return common.drafter_from_wire(message.info)
