"""The drafters of a verifier: their streams, which sessions each has, and what each may cause.

It may import `sessions`, `target` and `records`.
Others use `DrafterPool`, on the engine's thread; `DrafterStreams`, on the event loop.
"""
