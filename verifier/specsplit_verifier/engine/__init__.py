"""The thread that steps: it takes what streams bring, runs a step, and hands out what came of it.

It may import `schedule`, `policy`, `drafters`, `sessions`, `target` and `records`.
Others use `Engine`, the thread; `EngineCore`, what it does without threads and clocks of its own.
"""
