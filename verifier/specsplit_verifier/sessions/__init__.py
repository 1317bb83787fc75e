"""One session: its tokens, its tree, and what its drafter is known for and owes it.

It may import `target` and `records`.
Others use `Session`; `DraftSession`, its mirror of what its drafter holds.
"""
