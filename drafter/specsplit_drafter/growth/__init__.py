"""How a tree grows: which nodes are expanded next, what a node is worth, and what an expansion costs.

It may import `kinds`, `descent` and `drafts`.
Others use `Growth`, one session's tree; `ExpansionCost`, what they cost on this device.
"""
