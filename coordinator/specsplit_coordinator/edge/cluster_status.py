"""The cluster as a coordinator tells of it: who is there, what waits and runs here, and what became of sessions."""

from __future__ import annotations

from dataclasses import dataclass

from specsplit.build import build
from specsplit.membership import Cluster
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.admission import Admission
from specsplit_coordinator.requests.quotas import Quotas
from specsplit_coordinator.requests.request_log import RequestLog


@dataclass(frozen=True)
class ClusterStatus:
    """Looks the cluster up whenever it is asked."""

    registry: Registry
    admission: Admission
    requests: RequestLog
    quotas: Quotas

    def now(self) -> Cluster:
        """The cluster as it is."""
        totals = self.requests.totals
        return Cluster(
            members=self.registry.members,
            queued=self.admission.queued,
            running=self.admission.running,
            failovers=totals.failovers,
            preemptions=totals.preemptions,
            build=build(),
            coordinators=self.registry.coordinators,
            quotas=self.quotas.described(),
        )
