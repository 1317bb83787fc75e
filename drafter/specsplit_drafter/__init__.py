"""The drafter: grows token trees ahead of verifiers.

proposer.py        what any kind of drafter must be able to do
suffix.py          where the text has been before
ngram.py           the kind with no model
standalone.py      the kind with a small language model
heads.py           the kinds with a head on the target's features
feature_buffer.py  one session's features until they are read
token_map.py       one session's tokens in one KV pool
ranking.py         from logits to candidate children
growth.py          which node to expand next, and which candidates to push
calibration.py     from a draft's probabilities to those of acceptance
board.py           every session of one drafter: events in, grows and refusals out
engine.py          the thread that owns all of these
servicer.py        the gRPC edge
service.py         the process
"""
