"""Captured forwards: how they are without a GPU, where what is captured is called again on the same memory, and what holds for all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from specsplit.features import LAST
from specsplit.model import CausalLM, Row
from specsplit.model.attention.torch_attention import TorchAttention, TorchForward
from specsplit.model.graphs import Bucket, Captured, Results
from specsplit.model.lm.runner import ModelRunner
from specsplit.model.pages.input_batch import InputBatch
from tests.support.rounding import assert_same_sums


class RecordingCapturer:
    """A Capturer whose replays call what was captured, and write what comes of it where the first results are, as a CUDA graph does."""

    def __init__(self) -> None:
        self.captures = 0
        self.replayed: list[int] = []
        """The captures that were replayed, by number."""

    @property
    def replays(self) -> int:
        return len(self.replayed)

    @property
    def nbytes(self) -> int:
        return self.captures << 20

    def capture(self, work: Callable[[], Results]) -> Captured:
        work()
        results = work()
        number, self.captures = self.captures, self.captures + 1

        def replay() -> None:
            self.replayed.append(number)
            for name, result in work().items():
                results[name].copy_(result)

        return Captured(replay, results)


class Launch:
    """A captured graph, as torch has it: who runs it holds it, and where that raises the traceback does."""

    def __init__(self, replay: Callable[[], object]) -> None:
        self._replay = replay
        self.failure: Exception | None = None

    def __call__(self) -> None:
        if self.failure is not None:
            raise self.failure
        self._replay()


class WatchedCapturer(RecordingCapturer):
    """Knows how many of the graphs that it has captured are still held by somebody."""

    def __init__(self, last: int | None = None) -> None:
        """From its `last` capture on it fails to end what it has recorded."""
        super().__init__()
        self._last = last
        self._launches: list[ReferenceType[Launch]] = []

    @property
    def held(self) -> int:
        return sum(launch() is not None for launch in self._launches)

    def fail(self, error: Exception) -> None:
        """From now on no graph can be launched."""
        for launch in self._launches:
            if (held := launch()) is not None:
                held.failure = error

    def capture(self, work: Callable[[], Results]) -> Captured:
        captured = super().capture(work)
        launch = Launch(captured.replay)
        self._launches.append(ref(launch))
        if self.captures == self._last:
            raise RuntimeError("operation not permitted when stream is capturing")
        return replace(captured, replay=launch)


class FailingCapturer(RecordingCapturer):
    """From its `last` capture on it can run what it is to capture, and fails in the end to record it."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last

    def capture(self, work: Callable[[], Results]) -> Captured:
        if self.captures >= self._last:
            super().capture(work)
            raise RuntimeError("operation not permitted when stream is capturing")
        return super().capture(work)


class TorchStatic:
    """A StaticAttention over the torch backend, which no device could capture: it is planned anew, and the same object attends."""

    forms: Sequence[str] = ("any",)

    def __init__(self, runner: ModelRunner, most_tokens: int = 1 << 20) -> None:
        """Rows that see more than `most_tokens` have no room."""
        self._runner = runner
        self._backend = TorchAttention(runner.kv, runner.pool.page_size)
        self._most_tokens = most_tokens
        self.plans: dict[Bucket, TorchForward] = {}

    def fitting(self, rows: Sequence[Row]) -> Sequence[str]:
        return self.forms if sum(row.pages.length for row in rows) <= self._most_tokens else ()

    def forward(self, bucket: Bucket, form: Any, write_slots: tuple[Tensor, Tensor]) -> _Replanned:
        return _Replanned(self, bucket, write_slots)

    def plan(self, rows: Sequence[Row], bucket: Bucket, form: Any, half: int) -> None:
        batch = InputBatch(rows, self._runner.pool.tables, self._runner.device)
        assert len(batch.tokens) == bucket.tokens
        self.plans[bucket] = self._backend.gathered(batch)


@dataclass(frozen=True)
class _Replanned:
    static: TorchStatic
    bucket: Bucket
    write_slots: tuple[Tensor, Tensor]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        planned = self.static.plans[self.bucket]
        assert all(map(torch.equal, planned.write_slots, self.write_slots))
        return planned.attend(layer, query, key, value, scaling, extras)


def asking(data: st.DataObject, rows: Sequence[Row]) -> list[Row]:
    """The rows, with logits wanted anywhere."""
    asked = [data.draw(st.lists(st.integers(0, row.num_tokens - 1), max_size=row.num_tokens)) for row in rows]
    return [replace(row, logits_at=at) for row, at in zip(rows, asked, strict=True)]


ALL_LAYERS = (0, 1, 3, LAST)
LAYERS = st.sets(st.sampled_from(ALL_LAYERS))


def is_as_eager(lm: CausalLM, rows: Sequence[Row], layers: Collection[int]) -> None:
    """Run rows with the model's graphs and without, over the same random KV: logits, hidden states and KV are equal but for rounding.

    Nothing but the KV of the rows and that of the spare page is touched.
    """
    lm.kv.data.normal_()
    lm.kv.data[:, :, -lm.pool.page_size :] = 0  # nothing but padding is ever written there
    before, graphs = lm.kv.data.clone(), lm.graphs
    logits, hidden = lm.forward_capturing(rows, layers)
    logits, hidden = logits.clone(), {layer: states.clone() for layer, states in hidden.items()}
    kv = lm.kv.data.clone()
    lm.kv.data.copy_(before)
    lm.graphs = None
    expected, states = lm.forward_capturing(rows, layers)
    lm.graphs = graphs
    near(logits, expected)
    assert hidden.keys() == states.keys() == set(layers)
    for layer in layers:
        near(hidden[layer], states[layer])
    written = torch.from_numpy(np.concatenate([lm.pool.tables.last_slots(r.pages, r.num_tokens) for r in rows]))
    near(kv[:, :, written], lm.kv.data[:, :, written])
    kept = torch.ones(lm.kv.num_slots, dtype=torch.bool)
    kept[written] = kept[-lm.pool.page_size :] = False
    assert torch.equal(kv[:, :, kept], before[:, :, kept])


def near(found: Tensor, expected: Tensor) -> None:
    """Equal but for rounding: to float32, or by some of the operations to a type of 16 bits."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert found.isfinite().all()
    if expected.dtype is torch.float32:
        assert_same_sums(found, expected)
    elif expected.numel():
        assert (found - expected).abs().max() <= 2e-2 * expected.abs().max()
