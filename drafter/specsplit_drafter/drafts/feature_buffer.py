"""Features of one session between their arrival and the forward that reads them."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from specsplit.errors import InvalidRequest
from specsplit.features import FeatureLayout, Features
from specsplit.model.tensors.feature_codec import decode, saturated


class FeatureBuffer:
    """Features on the host, in `dtype`: one copy to the device serves all sessions of a forward. The verifier's window bounds it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.arrived = 0
        """Position behind the last feature that has arrived; they come in order and without a gap, from 0."""
        self._dtype = dtype
        self._unread: deque[Tensor] = deque()
        """Rows [n, width] of each event, in order."""

    def add(self, features: Features, layout: FeatureLayout, root: int) -> None:
        """Take features in; `root` is the position of the root, before which they must end.

        What `dtype` cannot hold becomes its largest number of that sign. Raises InvalidRequest naming the field, and takes nothing,
        unless they are the next ones, laid out as said, and finite.
        """
        if features.first != self.arrived:
            raise InvalidRequest(
                "features.first", f"is {features.first}, expected {self.arrived}: features come in order, without a gap"
            )
        if features.end > root:
            raise InvalidRequest(
                "features.count",
                f"is {features.count} from position {features.first} on, expected at most {root - features.first}: "
                f"the root is at position {root}, and the target has yet to read it",
            )
        rows = decode(features, layout, dtype=torch.float32)
        if not rows.isfinite().all():  # it would spread to every row of the session behind it
            raise InvalidRequest("features.data", "holds NaN or infinity, expected finite numbers")
        self._unread.append(saturated(rows, self._dtype))
        self.arrived = features.end

    def take(self, count: int) -> list[Tensor]:
        """Take the next `count` unread rows, which must have arrived, as parts [n, width] in order."""
        taken: list[Tensor] = []
        while count:
            part = self._unread.popleft()
            if len(part) > count:
                self._unread.appendleft(part[count:])
                part = part[:count]
            taken.append(part)
            count -= len(part)
        return taken
