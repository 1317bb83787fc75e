"""The time of a forward: by the clock, or by the device itself where the host only launches it."""

from __future__ import annotations

from typing import Self

import torch

from specsplit.clock import Clock


def forward_time(device: torch.device, clock: Clock) -> HostTime | DeviceTime:
    """Time the forward that is run inside. Who runs it calls `launched` when it is planned."""
    return DeviceTime(device) if device.type == "cuda" else HostTime(clock)


class HostTime:
    """Time by the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = self._ended = 0.0

    def __enter__(self) -> Self:
        self._began = self._clock.now()
        return self

    def launched(self) -> None:
        """Do nothing: a host that computes plans too, in the same time."""

    def __exit__(self, *_: object) -> None:
        self._ended = self._clock.now()

    @property
    def seconds(self) -> float:
        """The seconds that it took."""
        return self._ended - self._began


class DeviceTime:
    """Time between two marks in the work of a GPU. Nobody waits for either.

    The first is made when the forward is launched: while the host plans, the device waits for it, and that is the host's time.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._began = torch.cuda.Event(enable_timing=True)
        self._ended = torch.cuda.Event(enable_timing=True)

    def __enter__(self) -> Self:
        self.launched()
        return self

    def launched(self) -> None:
        """Begin here, and no earlier."""
        self._began.record(self._stream)

    def __exit__(self, *_: object) -> None:
        self._ended.record(self._stream)

    @property
    def seconds(self) -> float:
        """The seconds that it took. Waits for the second mark, which a step whose results were read has passed."""
        self._ended.synchronize()
        return self._began.elapsed_time(self._ended) / 1e3
