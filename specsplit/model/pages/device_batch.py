"""A forward of which only the device knows what its tokens are and what they see: a level that was chosen there.

B   rows, of as many new tokens each: Q        L   slots that a row lists
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
    slots: Tensor
    """int64 [B, L] what their row lists, the slots that are written included."""
    sees: Tensor
    """bool [B, Q, L] which of these each new token sees, at least one."""
