"""Checkpoints of draft heads that another library writes, with what its own forward makes of them: what our loading is held to."""
