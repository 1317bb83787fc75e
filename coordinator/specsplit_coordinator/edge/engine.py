"""The coordinator as an engine, for gateways that speak the engine protocol (`specsplit.vllm_engine`)."""

from __future__ import annotations

from collections.abc import Callable

from specsplit.engine import EngineLoad, engine_load
from specsplit.errors import Unavailable
from specsplit.membership import Cluster
from specsplit.rpc import Phase, Server
from specsplit.values import ModelInfo
from specsplit_coordinator.members.registry import Registry


class CoordinatorEngine:
    """A cluster that answers as one engine."""

    def __init__(self, registry: Registry, cluster: Callable[[], Cluster], server: Server) -> None:
        self._registry = registry
        self._cluster = cluster
        self._server = server

    def model(self) -> ModelInfo:
        """What the verifiers serve. Raises Unavailable if there is none."""
        return self._registry.model()

    def load(self) -> EngineLoad:
        """The load of all verifiers together, and of the queue."""
        cluster = self._cluster()
        return engine_load(cluster.members, cluster.running, cluster.queued)

    def problem(self) -> str:
        """Why no requests are taken, in a sentence; empty if they are."""
        if self._server.phase is not Phase.SERVING:
            return "the coordinator is draining and takes no new requests"
        try:
            self._registry.model()
        except Unavailable as error:
            return str(error)
        return ""
