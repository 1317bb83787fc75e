"""What torch leaves of a capture that failed, put right."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import torch

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
