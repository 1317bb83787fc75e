"""Where the engine thread's time goes between two steps: the forward, waiting, and everything else."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

from specsplit.speculation import Draft
from specsplit_verifier.drafting import Toll
from specsplit_verifier.record import ChunkStep, SessionStep, StepRecord
from specsplit_verifier.session import Session, Verdict
from specsplit_verifier.stepper import StepResult


class Meter:
    """Accounts for the time since the last step ended, or since the thread last had nothing to do."""

    def __init__(self) -> None:
        self._mark = time.monotonic()
        self._handed_out: float | None = None
        self._waited_s = 0.0
        self._followed_hit = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time in here is waiting."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._waited_s += time.monotonic() - began

    def restart(self) -> None:
        """The thread had nothing to do until now."""
        self._mark, self._handed_out, self._waited_s, self._followed_hit = time.monotonic(), None, 0.0, False

    def handed_out(self) -> None:
        """The step that was recorded last has left the thread."""
        self._handed_out = time.monotonic()

    def record(self, result: StepResult, began: float, toll: Toll) -> StepRecord:
        """The record of a step that is about to be handed out; it `began` with the choice of its batch."""
        ended = time.monotonic()
        verdicts = [verdict for _, _, verdict in result.verdicts]
        record = StepRecord(
            began=began,
            started=result.forward_started,
            ended=ended,
            gap_us=(result.forward_started - self._handed_out) * 1e6 if self._handed_out is not None else 0.0,
            waited_us=self._waited_s * 1e6,
            forward_us=result.forward_s * 1e6,
            host_us=(ended - self._mark - self._waited_s - result.forward_s) * 1e6,
            sessions=len(verdicts),
            tokens=result.tokens,
            prefill_tokens=sum(len(positions) for _, positions in result.prompts),
            reprefill_tokens=result.reprefill_tokens,
            drafted=sum(len(draft.tokens) - 1 for _, draft, _ in result.verdicts),
            accepted=sum(verdict.accepted for verdict in verdicts),
            committed=sum(len(verdict.output.tokens) for verdict in verdicts if verdict.output),
            hits=sum(verdict.hit is True for verdict in verdicts),
            misses=sum(verdict.hit is False for verdict in verdicts),
            followed_hit=self._followed_hit,
            unverified_nodes=toll.unverified_nodes + sum(verdict.cut for verdict in verdicts),
            late_nodes=toll.late_nodes,
            failovers=toll.failovers,
            round_trips_s=toll.round_trips_s,
            survivals=array("f", [s for _, draft, _ in result.verdicts for s in draft.survivals[1:]]),
            outcomes=b"".join(_outcomes(draft, verdict) for _, draft, verdict in result.verdicts),
        )
        self._mark, self._waited_s = ended, 0.0
        self._followed_hit = bool(verdicts) and all(verdict.hit is True for verdict in verdicts)
        return record


def session_steps(result: StepResult) -> list[SessionStep]:
    """What a step was to each session that brought a tree; to be asked before its drafter is told."""
    return [_session_step(*of) for of in result.verdicts]


def chunk_steps(result: StepResult) -> list[ChunkStep]:
    """What a step read of prompts."""
    return [ChunkStep(session.id, positions.start, len(positions)) for session, positions in result.prompts]


def _session_step(session: Session, draft: Draft, verdict: Verdict) -> SessionStep:
    drafted = len(draft.tokens) - 1
    return SessionStep(
        session.id,
        session.plan,
        drafted > 0 or session.mirror is not None,
        session.wait.held_since,
        drafted,
        max(draft.positions) - draft.positions[0],
        verdict.accepted,
        len(verdict.output.tokens) if verdict.output else 0,
        verdict.hit,
        verdict.miss,
        verdict.totals,
    )


def _outcomes(draft: Draft, verdict: Verdict) -> bytes:
    accepted = bytearray(len(draft.tokens))
    for i in verdict.path:
        accepted[i] = 1
    return bytes(accepted[1:])
