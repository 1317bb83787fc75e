"""torch's profiler over the steps of an engine."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

from specsplit.engine import ACTIVITIES, MOST_PROFILED, StartProfile
from specsplit.errors import Exhausted, InvalidRequest, NotFound

_ACTIVITIES: dict[str, ProfilerActivity] = dict(
    zip(ACTIVITIES, (ProfilerActivity.CPU, ProfilerActivity.CUDA), strict=True)
)


class TorchProfiler:
    """One profile at a time. Belongs to the thread that steps, but for what `stop` returns."""

    def __init__(self) -> None:
        self._profile: profile | None = None
        self._left = 0
        """Steps until it is over by itself; 0: it is, or there is none."""

    def start(self, wanted: StartProfile) -> None:
        """Profile what this thread computes. Raises Exhausted if a profile is there, InvalidRequest for a GPU that is not."""
        if self._profile is not None:
            raise Exhausted("a profile is there already; StopProfile ends it, and writes it")
        there: dict[str, ProfilerActivity] = _ACTIVITIES if torch.cuda.is_available() else {"CPU": ProfilerActivity.CPU}
        for name in wanted.activities:
            if name not in there:
                raise InvalidRequest("activities", f"has {name}, and torch finds none here")
        names = wanted.activities or tuple(there)
        profiled = profile(
            activities=[there[name] for name in names],
            record_shapes=wanted.record_shapes,
            with_stack=wanted.with_stack,
            acc_events=True,  # there is one cycle; without it torch 2.11 warns that events of others are cleared
        )
        profiled.start()
        self._profile, self._left = profiled, wanted.num_steps or MOST_PROFILED

    def stepped(self) -> None:
        """Count a step that is over; the last that was wanted ends the profile."""
        if self._left:
            self._left -= 1
            if not self._left and self._profile is not None:
                self._profile.stop()

    def stop(self) -> profile:
        """End the profile, and hand it over to be written. Raises NotFound if there is none."""
        profiled, self._profile = self._profile, None
        if profiled is None:
            raise NotFound("no profile was started here")
        if self._left:
            self._left = 0
            profiled.stop()
        return profiled
