"""Between numpy on the host and tensors on the device: there without waiting, and back in one copy that is waited for when it is read.

Whatever a step of ours copies to the device goes through `on_device` or `send`, so it can be counted. Libraries make copies of their own:
FlashInfer where it plans, and torch of a list that indexes a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_NUMPY: Final = {
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
    torch.float64: np.float64,
    torch.float32: np.float32,
}

UploadArray: TypeAlias = Callable[[NDArray[Any]], Tensor]
"""Takes an array that is to be on the device, and gives the place where it will be."""


def pinned_zeros(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the host, in memory that a GPU copies from by itself; ordinary memory if the device is no GPU."""
    return torch.zeros(size, dtype=dtype, pin_memory=device.type == "cuda")


def send(host: Tensor, memory: Tensor) -> Tensor:
    """Copy what is on the host, in pinned memory, over as much memory of the device, without waiting -> that memory."""
    return memory.copy_(host, non_blocking=True)


def pinned(array: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """On the host, in memory that a GPU copies from by itself; the array's own memory if the device is no GPU."""
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" and tensor.numel() else tensor


def on_device(array: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """On the device, what is an array or a tensor on the host; its own memory if the device is the CPU."""
    return pinned(array, device).to(device, non_blocking=True)


def all_on_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Arrays of one type on the device, by one copy."""
    flat = on_device(np.concatenate([array.reshape(-1) for array in arrays]), device)
    parts = flat.split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def on_host(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Contiguous tensors of one device as arrays, once all that the device was given before is done."""
    return to_host(tensors).arrays()


class Event(Protocol):
    """What a HostCopy waits for."""

    def synchronize(self) -> None:
        """Wait until it has happened."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class HostCopy:
    """Tensors on their way to the host. Any thread may read them."""

    _views: Callable[[], list[NDArray[Any]]]
    _ready: Event | None = None
    _source: Tensor | None = None
    """Held until nobody asks any more: the device has no other use for its memory while it is copied."""

    def arrays(self) -> list[NDArray[Any]]:
        """Wait until they are there, and give them."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._views()


def to_host(tensors: Sequence[Tensor], *, aside: bool = False) -> HostCopy:
    """Begin to copy contiguous tensors of one device to the host, into one piece of pinned memory. Nothing waits here.

    `aside`: the copy is on a stream of its own, so that what the device is given next need not wait for it, nor it for that. On
    the CPU nothing is copied: the arrays are the tensors' own memory.
    """
    device = tensors[0].device if tensors else torch.device("cpu")
    if device.type != "cuda":
        return HostCopy(lambda: [tensor.numpy() for tensor in tensors])
    current, raw = torch.cuda.current_stream(device), packed(tensors)
    stream = _side_stream(device) if aside else current
    if aside:
        stream.wait_event(current.record_event())
    host = torch.empty(raw.shape, dtype=torch.uint8, pin_memory=True)
    with torch.cuda.stream(stream):
        host.copy_(raw, non_blocking=True)
    shapes = [torch.empty_like(tensor, device="meta") for tensor in tensors]  # so that the device's memory is not held
    return HostCopy(partial(unpacked, host.numpy(), shapes), stream.record_event(), raw)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def given_so_far(device: torch.device) -> torch.cuda.Event | None:
    """An event behind what the device was given on this thread's stream; None: it is no GPU, and all of that is done."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


def wait_for(device: torch.device) -> None:
    """Wait until what the device was given on this thread's stream is done."""
    if (given := given_so_far(device)) is not None:
        given.synchronize()


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of tensors, uint8, end to end."""
    return torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])


def unpacked(raw: NDArray[np.uint8], like: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Views of what was packed of tensors like these."""
    parts = np.split(raw, list(accumulate(tensor.nbytes for tensor in like))[:-1])
    return [part.view(_NUMPY[tensor.dtype]).reshape(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
