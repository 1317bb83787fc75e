"""Triton kernels: what the reference in torch picks, by one pass over logits that stay where they are.

Their modules import triton, and are imported only where there is no obstacle.
"""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

import torch


def obstacle(device: torch.device) -> str | None:
    """Why triton's kernels cannot be run on a device, and what to do; None if they can."""
    if device.type != "cuda":
        return f"they need a GPU, and the device is {device}"
    if find_spec("triton") is None:
        return "the package triton is missing; install the one that this torch goes with"
    if not os.environ.get("CC") and not shutil.which("gcc") and not shutil.which("clang"):
        return "triton finds no C compiler; install gcc, or let CC name one"
    return None


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """Kernels launched inside run on this device: triton goes by the thread's current one, and not by where the tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
