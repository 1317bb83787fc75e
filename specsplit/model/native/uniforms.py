"""Uniform numbers of many streams of splitmix64, in one call: torch takes sixteen passes over them, and the interpreter's lock for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specsplit.model.native.library import library


def negated_uniforms(seeds: Sequence[int], positions: Sequence[int], width: int) -> Tensor:
    """float64 [R, width]: -u of draw v of the stream of (seeds[r], positions[r]). They are odd multiples of 2^-53 below 1.

    Raises LoadError where there is no kernel.
    """
    streams = np.array((seeds, positions), dtype=np.uint64)
    uniforms = torch.empty(len(seeds), width, dtype=torch.float64)
    library().negated_uniforms(*(each.ctypes.data for each in streams), len(seeds), width, uniforms.data_ptr())
    return uniforms
