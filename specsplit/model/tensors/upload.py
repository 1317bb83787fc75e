"""Host memory that is copied to one place on the device, step after step, without waiting for the copies."""

from __future__ import annotations

from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.model.tensors.transfer import pinned_zeros, send


class Upload:
    """An array on the device, and two on the host that it is copied from alternately.

    So what belongs to the next step can be written while the copy of this one may still be under way. `Halves` says which of them is free.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.memory: Final = torch.zeros(size, dtype=dtype, device=device)
        """[size] on the device."""
        self._halves: Final = [pinned_zeros(size, dtype, device) for _ in range(2)]
        self._arrays: Final[list[NDArray[Any]]] = [half.numpy() for half in self._halves]

    def __len__(self) -> int:
        return len(self.memory)

    def host(self, half: int) -> NDArray[Any]:
        """[size] to be written before `send`."""
        return self._arrays[half]

    def send(self, half: int, count: int) -> Tensor:
        """Copy the first `count` elements -> a view of them on the device."""
        return send(self._halves[half][:count], self.memory[:count])


class Halves:
    """Which half of all uploads a step writes: they alternate, and a half is free once the copies of the step before last are done."""

    def __init__(self, device: torch.device) -> None:
        self._device: Final = device
        self._done: Final = [torch.cuda.Event(), torch.cuda.Event()] if device.type == "cuda" else []
        self._half = 0

    def take(self) -> int:
        """The half of the next step. Waits for the device only if it is two steps behind."""
        self._half = 1 - self._half
        if self._done:
            self._done[self._half].synchronize()
        return self._half

    def sent(self) -> None:
        """All copies of this step have been asked for."""
        if self._done:
            self._done[self._half].record(torch.cuda.current_stream(self._device))
