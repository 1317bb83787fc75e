"""gRPC as every specsplit service and client uses it: one error catalogue, one kind of server, one way to dial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specsplit.lazy import offering

if TYPE_CHECKING:
    from specsplit.rpc.public import *  # noqa: F403

__getattr__ = offering(__name__)  # whoever only asks for the health of a service imports no server
