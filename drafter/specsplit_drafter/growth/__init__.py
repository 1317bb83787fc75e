"""The growth of a tree: which nodes are expanded next, cost and benefit of a node, and the cost of an expansion.

It may import `kinds`, `descent` and `drafts`.
Others use `Growth`, one session's tree; `ExpansionCost`, the cost of expansions on this device; `Usage`, what became of them.
"""
