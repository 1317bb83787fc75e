"""What is still there when nobody asks a cluster for anything any more."""

from __future__ import annotations

from specsplit.membership import Cluster


def left_over(cluster: Cluster) -> str:
    """Requests, sessions and pages that should be gone; empty: nothing."""
    if cluster.queued or cluster.running:
        return f"{cluster.queued} requests were queued, and {cluster.running} running"
    if busy := [member.member_id for member in cluster.members if member.load.sessions]:
        return f"{', '.join(busy)} had sessions"
    held = [member.member_id for member in cluster.members if member.load.free_pages != member.load.total_pages]
    return f"{', '.join(held)} held pages" if held else ""
