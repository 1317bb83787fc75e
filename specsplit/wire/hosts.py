"""common.proto: where a member computes."""

from __future__ import annotations

from specsplit.v1 import common_pb2 as pb
from specsplit.values import Host
from specsplit.values.checks import require
from specsplit.values.host import CoreRange


def host_to_wire(host: Host) -> pb.Host | None:
    """None if it is not told."""
    if not host.machine:
        return None
    cores = [end for each in host.cores for end in each]
    return pb.Host(machine=host.machine, cores=cores, threads=host.threads, device=host.device)


def host_from_wire(message: pb.Host) -> Host:
    """Read where a member computes; absent: not told. Raises InvalidRequest for cores that are no ascending ranges, or are too many."""
    if not message.machine:
        return Host()
    require(len(message.cores) % 2 == 0, "host.cores", "ends with the first core of a range that has no last")
    cores = tuple(CoreRange(*ends) for ends in zip(message.cores[::2], message.cores[1::2], strict=True))
    return Host(message.machine, cores, message.threads, message.device or "cpu")
