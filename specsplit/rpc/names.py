"""Full names of the gRPC services, for health, reflection and `Server`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

COORDINATOR_SERVICE = "specsplit.v1.CoordinatorService"
CLUSTER_SERVICE = "specsplit.v1.ClusterService"
VERIFIER_SERVICE = "specsplit.v1.VerifierService"
DRAFTER_SERVICE = "specsplit.v1.DrafterService"
VLLM_ENGINE_SERVICE = "vllm.grpc.engine.VllmEngine"
"""The engine protocol of vLLM, whose messages are those of the package smg-grpc-proto."""

CALLED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        COORDINATOR_SERVICE: ("coordinator",),
        CLUSTER_SERVICE: ("coordinator",),
        VERIFIER_SERVICE: ("verifier",),
        DRAFTER_SERVICE: ("drafter",),
        VLLM_ENGINE_SERVICE: ("coordinator", "verifier"),
    }
)
"""The processes that have each, as sentences call them."""
