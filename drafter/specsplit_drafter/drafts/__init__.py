"""What drafting is, whoever does it: the proposer and the draft model as interfaces, calibration, and records of rounds.

It imports no other room.
Others use `Proposer`; `DraftModel`.
"""
