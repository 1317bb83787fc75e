"""The record of a step, of which tests that read it change what they look at."""

from __future__ import annotations

from specsplit_verifier.records.step import StepResult

STEP = StepResult(
    kv_tokens=0,
    tokens=1,
    prefill_tokens=0,
    recomputed_tokens=0,
    began=0.0,
    started=0.0,
    ended=1.0,
    waited_us=0.0,
    forward_us=1.0,
    host_us=1.0,
)
