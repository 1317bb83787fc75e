"""A forward of which only the device knows what its tokens are and what they see: a level that was chosen there.

B   rows, of as many new tokens each: Q
C   slots of the longest context               E   slots of the tail, which not every new token sees
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBatch:
    """One forward over B x Q new tokens, row by row. All of it is on the device, and its shape depends on no value there."""

    tokens: Tensor
    """int64 [B * Q]"""
    positions: Tensor
    """int64 [B * Q]"""
    write_slots: Tensor
    """int64 [B * Q] where their KV goes."""
    context: Tensor
    """int64 or int32 [B, C] slots of what all new tokens of a row see; padding behind a shorter one is slots that hold numbers."""
    lengths: Tensor
    """int64 [B] how many of these there are, at least one."""
    tail: Tensor
    """int64 [B, E] slots of what comes behind that, those that are written included."""
    sees: Tensor
    """bool [B, Q, E] which of the tail each new token sees, itself at least. Along a path slots stand in order."""
