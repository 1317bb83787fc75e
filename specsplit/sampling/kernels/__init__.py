"""Triton kernels: what the reference in torch picks, by one pass over logits that stay where they are.

Their modules import triton, and are imported only where `runs_on` says so.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch


def runs_on(device: torch.device) -> bool:
    """True for a GPU where triton is installed."""
    return device.type == "cuda" and find_spec("triton") is not None
