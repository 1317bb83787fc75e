"""What specsplit.rpc offers; it is imported when the first of it is asked for."""

from __future__ import annotations

from specsplit.rpc.callers import caller
from specsplit.rpc.catalogue import (
    CODES,
    code_of,
    code_of_departure,
    from_rpc_error,
    from_status_bytes,
    is_from_peer,
    is_task_cancelled,
    number_of,
    sentence_of,
    to_error,
    to_status,
    to_status_bytes,
)
from specsplit.rpc.certificates import Pems, shown_to_servers
from specsplit.rpc.channel import check_reachable, dial, dial_blocking
from specsplit.rpc.coordinators import Coordinators
from specsplit.rpc.edge import Context, abort
from specsplit.rpc.health import health_of_blocking, wait_until_serving, wait_until_serving_blocking
from specsplit.rpc.member import member_id_of
from specsplit.rpc.memberships import Memberships
from specsplit.rpc.names import (
    CLUSTER_SERVICE,
    COORDINATOR_SERVICE,
    DRAFTER_SERVICE,
    VERIFIER_SERVICE,
    VLLM_ENGINE_SERVICE,
)
from specsplit.rpc.revisions import Revisions
from specsplit.rpc.server import Phase, Server
from specsplit.rpc.service import Service, registration, run_service

__all__ = [
    "CLUSTER_SERVICE",
    "CODES",
    "COORDINATOR_SERVICE",
    "DRAFTER_SERVICE",
    "VERIFIER_SERVICE",
    "VLLM_ENGINE_SERVICE",
    "Context",
    "Coordinators",
    "Memberships",
    "Pems",
    "Phase",
    "Revisions",
    "Server",
    "Service",
    "abort",
    "caller",
    "check_reachable",
    "code_of",
    "code_of_departure",
    "dial",
    "dial_blocking",
    "from_rpc_error",
    "from_status_bytes",
    "health_of_blocking",
    "is_from_peer",
    "is_task_cancelled",
    "member_id_of",
    "number_of",
    "registration",
    "run_service",
    "sentence_of",
    "shown_to_servers",
    "to_error",
    "to_status",
    "to_status_bytes",
    "wait_until_serving",
    "wait_until_serving_blocking",
]
