"""What penalties count: which tokens a session's text holds, and how often each was generated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from specsplit.model.tensors.transfer import all_on_device


class TokenCounts:
    """The counts of one session's committed tokens. Tensors on the device follow them by what has changed.

    K distinct tokens, in the order in which they came.
    """

    def __init__(self, prompt_tokens: int) -> None:
        """`prompt_tokens`: so many of the text, from the front, were not generated."""
        self._prompt_tokens = prompt_tokens
        self._length = 0
        self._places: dict[int, int] = {}
        self._times: list[int] = []
        self._changed: set[int] = set()
        """Places that the tensors have yet to follow."""
        self._tensors = torch.empty(0, dtype=torch.int64), torch.empty(0)

    def __len__(self) -> int:
        """Tokens of the text that are counted."""
        return self._length

    def add(self, tokens: Sequence[int]) -> None:
        """Count the next tokens of the text."""
        for token in tokens:
            place = self._places.setdefault(token, len(self._times))
            if place == len(self._times):
                self._times.append(0)
            self._times[place] += self._length >= self._prompt_tokens
            self._length += 1
            self._changed.add(place)

    def generated(self, token: int) -> int:
        """Tell how often a token was generated."""
        place = self._places.get(token)
        return 0 if place is None else self._times[place]

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Distinct tokens of the text, int64 [K], and how often each was generated, float32 [K]."""
        if self._changed:
            tokens, times = (tensor.to(device) for tensor in self._tensors)
            changed = sorted(self._changed)
            columns = list(islice(self._places, len(tokens), None)), changed, [self._times[at] for at in changed]
            fresh, places, counted = all_on_device([np.array(each, dtype=np.int64) for each in columns], device)
            times = torch.cat([times, times.new_zeros(len(fresh))])
            times[places] = counted.to(times.dtype)
            self._tensors = torch.cat([tokens, fresh]), times
            self._changed.clear()
        return self._tensors
