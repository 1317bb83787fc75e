"""verifier.proto: what a verifier tells those who watch a session."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import ge, lt
from typing import TypeAlias

from specsplit.errors import InvalidRequest
from specsplit.sessions import WatchedStep
from specsplit.speculation import Grow
from specsplit.speculation.mirror import MAX_ID
from specsplit.tree import LEAST_EDGE
from specsplit.v1 import verifier_pb2 as pb
from specsplit.values import Plan
from specsplit.wire import common
from specsplit.wire.checks import check
from specsplit.wire.drafter import grow_from_wire, grow_to_wire
from specsplit.wire.no_drafts import no_drafts_from_wire, no_drafts_to_wire

Watched: TypeAlias = Grow | WatchedStep
"""What happened to a speculation. It stands here, since `specsplit.sessions` is imported by clients, which have no trees."""


def watch_to_wire(request_id: str) -> pb.WatchRequest:
    return pb.WatchRequest(request_id=request_id)


def watch_from_wire(message: pb.WatchRequest) -> str:
    """Read the request id. Raises InvalidRequest if it is too long."""
    check(message)
    return message.request_id


def watch_response(event: Watched, missed: int) -> pb.WatchResponse:
    """One event, and how many were left out before it, as one message."""
    if isinstance(event, Grow):
        return pb.WatchResponse(grown=grow_to_wire(event), missed=missed)
    return pb.WatchResponse(step=_step_to_wire(event), missed=missed)


def watch_event(message: pb.WatchResponse) -> tuple[Watched, int]:
    """The event, and how many were left out before it.

    Raises InvalidRequest for one that is absent, too long or contradicts itself, Incompatible if the message is none at all.
    """
    check(message)
    match message.WhichOneof("event"):
        case "grown":
            grow = grow_from_wire(message.grown)
            check_shape(grow)
            return grow, message.missed
        case "step":
            return _step_from_wire(message.step), message.missed
        case _:
            raise InvalidRequest("event", "is absent, expected grown or step")


def check_shape(grow: Grow) -> None:
    """Hold a grow that no mirror looks at to the shape of a tree. Raises InvalidRequest for one that has not."""
    if grow.ids and grow.ids[0] < 1:
        raise InvalidRequest("grow.ids[0]", f"is {grow.ids[0]}, expected at least 1")
    _check_ids("grow.ids", grow.ids)
    wrong = tuple(map(ge, grow.parents, grow.ids))
    if any(wrong):
        i = wrong.index(True)
        raise InvalidRequest(f"grow.parents[{i}]", f"is {grow.parents[i]}, expected 0 or an id below {grow.ids[i]}")
    _check_ids("grow.rescored_ids", grow.rescored)
    _check_edges("grow.edges", grow.edges)
    _check_edges("grow.new_edges", grow.new_edges)


def _check_ids(field: str, ids: Sequence[int]) -> None:
    if not all(map(lt, ids, ids[1:])):
        raise InvalidRequest(field, "do not ascend")
    if ids and ids[-1] > MAX_ID:
        raise InvalidRequest(field, f"holds {ids[-1]}, expected at most {MAX_ID}")


def _check_edges(field: str, edges: Sequence[float]) -> None:
    for edge in edges:
        if not LEAST_EDGE <= edge <= 0.0:
            raise InvalidRequest(field, f"holds {edge}, expected numbers in {LEAST_EDGE:g}..0")


def _step_to_wire(step: WatchedStep) -> pb.WatchedStep:
    return pb.WatchedStep(
        node_ids=step.ids,
        parents=step.parents,
        token_ids=step.tokens,
        edges=step.edges,
        verified=step.verified,
        accepted=step.accepted,
        bonus_token_id=step.bonus,
        committed=step.committed,
        root_position=step.root_position,
        commits=step.commits,
        plan=common.plan_to_wire(step.plan),
        speculation=common.speculation_to_wire(step.speculation),
        no_drafts=no_drafts_to_wire(step.no_drafts),
    )


def _step_from_wire(message: pb.WatchedStep) -> WatchedStep:
    _check_tree(message)
    if not message.HasField("plan") or not message.HasField("speculation"):
        raise InvalidRequest("step", "has no plan or no speculation, expected both")
    return WatchedStep(
        tuple(message.node_ids),
        tuple(message.parents),
        tuple(message.token_ids),
        tuple(message.edges),
        tuple(message.verified),
        tuple(message.accepted),
        message.bonus_token_id,
        message.committed,
        message.root_position,
        message.commits,
        common.plan_from_wire(message.plan).over(Plan()),
        common.speculation_from_wire(message.speculation),
        no_drafts_from_wire("step.no_drafts", message.no_drafts),
    )


def _check_tree(message: pb.WatchedStep) -> None:
    count = len(message.node_ids)
    for name, column in (
        ("parents", message.parents),
        ("token_ids", message.token_ids),
        ("edges", message.edges),
        ("verified", message.verified),
    ):
        if len(column) != count:
            raise InvalidRequest(f"step.{name}", f"has {len(column)} entries, expected as many as node_ids: {count}")
    if not count or message.parents[0] != -1 or not all(0 <= up < i for i, up in enumerate(message.parents) if i):
        raise InvalidRequest("step.parents", "are no tree, expected -1 for the first and earlier indices for the rest")
    if len(set(zip(message.parents, message.token_ids, strict=True))) < count:
        raise InvalidRequest("step.token_ids", "are no tree, expected different ones below each parent")
    _check_ids("step.node_ids", message.node_ids)
    _check_edges("step.edges", message.edges)
    path = message.accepted
    if not path or path[0] != 0 or any(i >= count or message.parents[i] != up for up, i in pairwise(path)):
        raise InvalidRequest("step.accepted", "is no path, expected indices from the root on, each one below the last")
    if message.committed > len(path):
        raise InvalidRequest("step.committed", f"is {message.committed}, expected at most {len(path)}")
