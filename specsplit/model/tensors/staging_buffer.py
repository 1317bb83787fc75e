"""One copy to the device per step, for all that its work behind the forward reads: it is made while the device runs the forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.model.tensors.transfer import Event, UploadArray, given_so_far, pinned_zeros, send

_ALIGNMENT: Final = 16
"""Bytes at whose multiples arrays begin: kernels read aligned numbers faster, and are compiled for one alignment only."""
_FIRST_BYTES: Final = 1 << 16


@dataclass(slots=True, eq=False)
class _Half:
    """Memory for one batch of arrays: on the host, in pinned memory, and as much on the device."""

    host: Tensor
    memory: Tensor
    read: torch.cuda.Event | None
    """Behind all that reads or has read the memory of the device; None: the device is the CPU."""
    sent: Event | None = None
    """Behind the copy out of the memory of the host; None: there was none that has to be waited for."""

    @classmethod
    def of(cls, nbytes: int, device: torch.device) -> _Half:
        host = pinned_zeros(nbytes, torch.uint8, device)
        memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        return cls(host, memory, given_so_far(device))


class StagingBuffer:
    """Arrays of any types that go to one device together, again and again. Used by one thread at a time.

    Two halves of memory alternate, so that a batch can be filled in while the last one is still being read. On a GPU the copy is on a
    stream of its own: it does not wait for the forward that the device is at, and what is given to the device after `send` comes behind it.
    """

    def __init__(self, device: torch.device, nbytes: int = _FIRST_BYTES) -> None:
        """`nbytes`: room at first. A batch that needs more makes more, and goes in two copies that once."""
        self._device: Final = device
        self._stream: Final = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._halves: Final = [_Half.of(nbytes, device) for _ in range(2)]
        self._filled = 0
        """Bytes of the half in front."""

    def begin(self) -> UploadArray:
        """Begin the next batch -> how arrays are uploaded with it. All that reads the last one has been given to the device.

        What is put in is on the device for whatever is given to it after `send`, until the batch after the next one is begun.
        """
        self._halves[0].read = given_so_far(self._device)
        self._halves.reverse()
        if (sent := self._halves[0].sent) is not None:
            sent.synchronize()  # two batches ago: done long since
        self._filled = 0
        return self._upload

    def send(self) -> None:
        """Copy all that was put in. Nothing waits here."""
        half, count = self._halves[0], self._filled
        if not count:
            return
        host, memory = half.host[:count], half.memory[:count]
        if self._stream is None or half.read is None:
            send(host, memory)
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(half.read)
            send(host, memory)
            copied = half.sent = self._stream.record_event()
        torch.cuda.current_stream(self._device).wait_event(copied)

    def _upload(self, array: NDArray[Any]) -> Tensor:
        start = -(-self._filled // _ALIGNMENT) * _ALIGNMENT
        if start + array.nbytes > len(self._halves[0].host):
            self._enlarge(array.nbytes)
            start = 0
        self._filled = start + array.nbytes
        place, half = slice(start, self._filled), self._halves[0]
        half.host[place].numpy()[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return half.memory[place].view(torch.from_numpy(array).dtype).view(array.shape)

    def _enlarge(self, nbytes: int) -> None:
        """Send what there is, and go on in larger memory. The old memory lasts as long as somebody refers to it."""
        self.send()
        self._halves[0] = _Half.of(2 * max(nbytes, len(self._halves[0].host)), self._device)
        self._filled = 0
