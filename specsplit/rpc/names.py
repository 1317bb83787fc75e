"""Full names of the gRPC services, for health, reflection and `Server`."""

from __future__ import annotations

COORDINATOR_SERVICE = "specsplit.v1.CoordinatorService"
CLUSTER_SERVICE = "specsplit.v1.ClusterService"
VERIFIER_SERVICE = "specsplit.v1.VerifierService"
DRAFTER_SERVICE = "specsplit.v1.DrafterService"
