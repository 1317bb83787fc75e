"""The process and its gRPC edge: parse, one call, serialise.

It may import `report`, `engine`, `schedule`, `policy`, `drafters`, `sessions`, `target` and `records`.
Others use `Verifier`, all of it in one object; `service.main`, the process.
"""
