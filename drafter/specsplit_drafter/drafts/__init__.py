"""The interfaces of every kind of drafter, the proposer and the draft model; calibration; and the records of expansions and commit rounds.

It imports no other room.
Others use `Proposer`; `DraftModel`.
"""
