"""How work on the device is recorded once, and run again and again without the host."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

Results = Mapping[Hashable, Tensor]
"""What work leaves, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """Work that was recorded."""

    replay: Callable[[], object]
    """Run it again, on what lies in the same memory now. Returns before the device is done."""
    results: Results
    """Written anew by every replay."""


class Capturer(Protocol):
    """Records work on a device, to be replayed there."""

    def capture(self, work: Callable[[], Results]) -> Captured:
        """Call `work`, twice or more, and record the last call. Raises whatever `work` raises, or the device for what it cannot record.

        `work` reads and writes memory that stays where it is, and asks the device for no value.
        """
        ...

    @property
    def nbytes(self) -> int:
        """Memory of the device that all that was captured takes, as far as that is known."""
        ...


class CudaCapturer:
    """Records CUDA graphs (a Capturer), which share one memory pool: no two of them may run at the same time.

    See "CUDA Graphs" in torch's documentation. A graph may use again what is free in the pool after an earlier one, so the largest is to be
    captured first, and results that outlive a replay of another graph have to lie elsewhere (`StaticOutputs`).
    """

    def __init__(self, device: torch.device) -> None:
        self._device: Final = device
        self._pool = torch.cuda.graph_pool_handle()
        self._side: Final = torch.cuda.Stream(device)
        """One for all captures: libraries keep memory for every stream that they have met."""
        self.nbytes = 0

    def capture(self, work: Callable[[], Results]) -> Captured:
        with torch.cuda.device(self._device):
            self._warm_up(work)
            torch.cuda.empty_cache()
            free, _ = torch.cuda.mem_get_info()
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
            try:
                # Other threads may go on using the device meanwhile.
                with torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"):
                    results = work()
            except BaseException as error:
                torch.cuda.set_stream(stream)  # torch leaves the side stream current where a capture could not be ended
                leave(self._pool, graph, torch.cuda.current_device())
                self._pool = torch.cuda.graph_pool_handle()
                cause = error.__context__
                if isinstance(cause, Exception):  # torch's own error says only that the capture has failed
                    raise RuntimeError(f"{type(cause).__name__}: {cause}") from error
                raise
            self.nbytes += max(0, free - torch.cuda.mem_get_info()[0])
        return Captured(graph.replay, results)

    def _warm_up(self, work: Callable[[], Results]) -> None:
        """Whatever libraries set up, tune or compile at the first call is no part of a graph."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            work()
        torch.cuda.current_stream().wait_stream(self._side)


_unfinished: Final[list[torch.cuda.CUDAGraph]] = []
"""Kept for good: torch's allocators may go on asking these whether a stream is theirs."""


def leave(pool: Any, graph: torch.cuda.CUDAGraph, device: int) -> None:
    """Have the allocator of a device leave the memory pool of a graph that could not be captured. No graph may be captured there again.

    A capture opens its pool and counts itself as a user of it (`CUDAGraph::capture_begin`, aten/src/ATen/cuda/CUDAGraph.cpp). If the device
    refuses to record something, `capture_end` raises before it has closed the pool, and the graph never gives up its use of it. Then
    the allocator takes a capture to be under way for ever: what several streams have used is not freed any more, and the pool never.
    """
    try:
        graph.pool()
    except RuntimeError:  # the capture has not ended: torch closes nothing
        _unfinished.append(graph)
        with suppress(RuntimeError):  # releases of torch differ in whether it is closed by now
            torch._C._cuda_endAllocateToPool(device, pool)  # pyright: ignore[reportPrivateUsage]
        torch._C._cuda_releasePool(device, pool)  # pyright: ignore[reportPrivateUsage]
