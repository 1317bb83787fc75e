"""Captured forwards without a GPU: what is captured is called again, on the same static memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specsplit.model import Row
from specsplit.model.graphs import Bucket, Captured, Results
from specsplit.model.input_batch import InputBatch
from specsplit.model.runner import ModelRunner
from specsplit.model.torch_attention import TorchForward


class RecordingCapturer:
    """A Capturer whose replays call what was captured, and write what comes of it where the first results are, as a CUDA graph does."""

    def __init__(self) -> None:
        self.captures = 0
        self.replays = 0

    @property
    def nbytes(self) -> int:
        return self.captures << 20

    def capture(self, work: Callable[[], Results]) -> Captured:
        work()
        results = work()
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            for name, result in work().items():
                results[name].copy_(result)

        return Captured(replay, results)


class FailingCapturer(RecordingCapturer):
    """Fails from its `last` capture on, as a device does that cannot record something."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last

    def capture(self, work: Callable[[], Results]) -> Captured:
        if self.captures == self._last:
            raise RuntimeError("operation not permitted when stream is capturing")
        return super().capture(work)


@dataclass(frozen=True)
class _Rows:
    rows: Sequence[Row]
    form: str = "any"


class TorchStatic:
    """A StaticAttention over the torch backend, which no device could capture: it is planned anew, and the same object attends."""

    forms: Sequence[str] = ("any",)

    def __init__(self, runner: ModelRunner, most_tokens: int = 1 << 20) -> None:
        """Rows that see more than `most_tokens` have no room."""
        self._runner = runner
        self._most_tokens = most_tokens
        self.plans: dict[Bucket, TorchForward] = {}

    def layout(self, rows: Sequence[Row], form: Any = None) -> _Rows | None:
        return _Rows(rows) if sum(row.pages.length for row in rows) <= self._most_tokens else None

    def forward(self, bucket: Bucket, form: Any, write_slots: Tensor) -> _Replanned:
        return _Replanned(self, bucket, write_slots)

    def plan(self, layout: _Rows, bucket: Bucket, half: int) -> None:
        batch = InputBatch(layout.rows, self._runner.pool.tables, self._runner.device)
        forward = self._runner.backend.plan(batch)
        assert isinstance(forward, TorchForward) and len(batch.tokens) == bucket.tokens
        self.plans[bucket] = forward


@dataclass(frozen=True)
class _Replanned:
    static: TorchStatic
    bucket: Bucket
    write_slots: Tensor

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        planned = self.static.plans[self.bucket]
        assert torch.equal(planned.write_slots, self.write_slots)
        return planned.attend(layer, query, key, value, scaling, extras)
