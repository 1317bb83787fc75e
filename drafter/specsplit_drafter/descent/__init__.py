"""Levels of a tree that the device draws one after the other, and how their children are ranked.

It may import `drafts`.
Others use `Descent`, some levels in one go; `DescentGraphs`, the same captured.
"""
