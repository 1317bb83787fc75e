"""Where the engine thread's time goes between two steps: the forward, waiting, and everything else."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

from specsplit.speculation import Draft
from specsplit_verifier.record import StepRecord
from specsplit_verifier.session import Verdict
from specsplit_verifier.stepper import StepResult


class Meter:
    """Accounts for the time since the last step ended, or since the thread last had nothing to do."""

    def __init__(self) -> None:
        self._mark = time.perf_counter()
        self._after_step = False
        self._waited_s = 0.0
        self._followed_hit = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time in here is waiting."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._waited_s += time.perf_counter() - began

    def restart(self) -> None:
        """The thread had nothing to do until now."""
        self._mark, self._after_step, self._waited_s, self._followed_hit = time.perf_counter(), False, 0.0, False

    def record(self, result: StepResult) -> StepRecord:
        """The record of a step that has just been handed out."""
        ended = time.perf_counter()
        verdicts = [verdict for _, _, verdict in result.verdicts]
        record = StepRecord(
            started=result.forward_started,
            gap_us=(result.forward_started - self._mark) * 1e6 if self._after_step else 0.0,
            waited_us=self._waited_s * 1e6,
            forward_us=result.forward_s * 1e6,
            host_us=(ended - self._mark - self._waited_s - result.forward_s) * 1e6,
            sessions=len(verdicts),
            tokens=result.tokens,
            prefill_tokens=result.prefill_tokens,
            reprefill_tokens=result.reprefill_tokens,
            drafted=sum(len(draft.tokens) - 1 for _, draft, _ in result.verdicts),
            accepted=sum(verdict.accepted for verdict in verdicts),
            committed=sum(len(verdict.output.tokens) for verdict in verdicts if verdict.output),
            hits=sum(verdict.hit is True for verdict in verdicts),
            misses=sum(verdict.hit is False for verdict in verdicts),
            followed_hit=self._followed_hit,
            survivals=array("f", [s for _, draft, _ in result.verdicts for s in draft.survivals[1:]]),
            outcomes=b"".join(_outcomes(draft, verdict) for _, draft, verdict in result.verdicts),
        )
        self._mark, self._after_step, self._waited_s = ended, True, 0.0
        self._followed_hit = bool(verdicts) and all(verdict.hit is True for verdict in verdicts)
        return record


def _outcomes(draft: Draft, verdict: Verdict) -> bytes:
    accepted = bytearray(len(draft.tokens))
    for i in verdict.path:
        accepted[i] = 1
    return bytes(accepted[1:])
