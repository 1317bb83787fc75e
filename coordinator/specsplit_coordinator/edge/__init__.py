"""The process and its gRPC edge: parse, one call, serialise.

It may import `page`, `requests`, `cluster` and `members`.
Others use `Coordinator`, all of it in one object; `service.main`, the process.
"""
