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
growth.py          how one session's tree grows, and which nodes of all are expanded next
expandable.py      which nodes of one session are worth expanding
candidates.py      children of expanded nodes that are no nodes yet
unsent.py          what one session's verifier has not been told
isolation.py       keeps a fault of one session's to that session
calibration.py     from a draft's probabilities to those of acceptance
session_table.py   every session of one drafter: events in, grows and refusals out
rounds.py          the commit rounds of sessions that are traced
record.py          what the engine tells the edge of its work
telemetry.py       metrics and spans
engine.py          the thread that owns all of these
servicer.py        the gRPC edge
service.py         the process
"""
