"""The drafter: grows token trees ahead of verifiers.

proposer.py        what any kind of drafter must be able to do
suffix.py          where the text has been before
ngram.py           the kind with no model
model_proposer.py  every kind with a model: its sessions and their pending context
draft_model.py     what such a kind asks of its model
standalone.py      a small language model as one
heads.py           a head on the target's features as one
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
