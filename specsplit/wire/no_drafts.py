"""common.proto: why steps verified no drafts."""

from __future__ import annotations

import math

from specsplit.errors import InvalidRequest
from specsplit.v1 import common_pb2 as pb
from specsplit.values import NoDrafts, NoDraftsCause

_CAUSES = {
    NoDraftsCause.REQUEST: pb.NO_DRAFTS_CAUSE_REQUEST,
    NoDraftsCause.PLAN: pb.NO_DRAFTS_CAUSE_PLAN,
    NoDraftsCause.NO_DRAFTER: pb.NO_DRAFTS_CAUSE_NO_DRAFTER,
    NoDraftsCause.REFUSED: pb.NO_DRAFTS_CAUSE_REFUSED,
    NoDraftsCause.RESTING: pb.NO_DRAFTS_CAUSE_RESTING,
    NoDraftsCause.EMPTY: pb.NO_DRAFTS_CAUSE_EMPTY,
    NoDraftsCause.LATE: pb.NO_DRAFTS_CAUSE_LATE,
    NoDraftsCause.PRICE: pb.NO_DRAFTS_CAUSE_PRICE,
    NoDraftsCause.ROOM: pb.NO_DRAFTS_CAUSE_ROOM,
    NoDraftsCause.MEMORY: pb.NO_DRAFTS_CAUSE_MEMORY,
}
_CAUSES_BACK = {value: cause for cause, value in _CAUSES.items()}


def no_drafts_to_wire(no_drafts: NoDrafts | None) -> pb.NoDrafts | None:
    """None: the field is left out."""
    if no_drafts is None:
        return None
    return pb.NoDrafts(
        cause=_CAUSES[no_drafts.cause],
        nodes=no_drafts.nodes,
        cost_ratio=no_drafts.cost_ratio,
        tokens=no_drafts.tokens,
        rarely=no_drafts.rarely,
    )


def no_drafts_from_wire(field: str, message: pb.NoDrafts) -> NoDrafts | None:
    """None where the sender has not said why, or knows causes that this build does not.

    Raises InvalidRequest, naming `field`, for numbers that no measurement gives.
    """
    for name, value in (("cost_ratio", message.cost_ratio), ("tokens", message.tokens)):
        if not (math.isfinite(value) and value >= 0):
            raise InvalidRequest(f"{field}.{name}", f"is {value}, expected a finite number that is not negative")
    cause = _CAUSES_BACK.get(message.cause)
    if cause is None:
        return None
    return NoDrafts(cause, message.nodes, message.cost_ratio, message.tokens, rarely=message.rarely)
