"""Ranks of a group, of verifiers as of drafters: which of them a process is, their turns, and the waves that turns come in."""
