"""The process and its gRPC edge: parse, one call, serialise.

It may import `engine`, `growth`, `kinds`, `descent` and `drafts`.
Others use `Drafter`, all of it in one object; `service.main`, the process.
"""
