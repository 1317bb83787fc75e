"""What people and the coordinator read of a verifier: load reports, metrics, spans, and steps that are watched.

It may import `engine`, `schedule`, `policy`, `drafters`, `sessions`, `target` and `records`.
Others use `Telemetry`, metrics and spans; `Reporter`, the load report of a heartbeat.
"""
