"""common.proto: ranks of a group, and their waves."""

from __future__ import annotations

from specsplit.errors import InvalidRequest
from specsplit.membership import GroupRank, WaveReport
from specsplit.v1 import common_pb2 as pb
from specsplit.wire.limits import MAX_MEMBERS


def rank_to_wire(group: GroupRank | None) -> pb.GroupRank | None:
    """Write which rank of a group a member is."""
    return None if group is None else pb.GroupRank(**vars(group))


def rank_from_wire(message: pb.GroupRank) -> GroupRank:
    """Raises InvalidRequest for a group without a name, too large a group, or a rank that it does not have."""
    if message.size > MAX_MEMBERS:
        raise InvalidRequest("register.group.size", f"is {message.size:,}, expected at most {MAX_MEMBERS:,}")
    return GroupRank(message.group_id, message.rank, message.size)


def wave_to_wire(wave: WaveReport | None) -> pb.WaveReport | None:
    """Write where a rank stands."""
    return None if wave is None else pb.WaveReport(**vars(wave))


def wave_from_wire(message: pb.WaveReport) -> WaveReport:
    """Raises InvalidRequest for a number out of range."""
    return WaveReport(message.number, message.parked, message.wanted)
