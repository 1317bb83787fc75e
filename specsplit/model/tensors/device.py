"""The device that settings name, as torch has it."""

from __future__ import annotations

import torch

from specsplit.errors import InvalidRequest, quoted


def check_device(name: str) -> None:
    """Raise InvalidRequest unless torch knows the device and can hold numbers there now."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter of a torch that was built without CUDA
        raise _refused(name, str(error).split("\n", maxsplit=1)[0].rstrip(".")) from error
    if device.type == "meta":
        raise _refused(name, "it holds no numbers")


def free_bytes(device: torch.device) -> int:
    """Memory of a GPU that is free, what torch holds without need counted."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


def _refused(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        "device", f"is {quoted(name)}, which torch {torch.__version__} cannot use here: {why}; expected {_usable()}"
    )


def _usable() -> str:
    """The devices that there are, in words."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return " or ".join(["cpu", *(f"cuda:{i}" for i in range(gpus))]) + ("" if gpus else " (torch sees no GPU)")
