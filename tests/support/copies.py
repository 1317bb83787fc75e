"""How often something is copied to the device, and how often the host waits for what comes back; counted on a CPU too."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Final

from torch import Tensor

from specsplit.model.tensors.transfer import HostCopy, on_device, send

_COUNTED: Final[dict[CodeType, str]] = {
    on_device.__code__: "copies",
    send.__code__: "copies",
    HostCopy.arrays.__code__: "waits",
}


@contextmanager
def counted_copies() -> Iterator[Counter[str]]:
    """Count the `copies` and the `waits` of this thread while inside. An empty array is not copied."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = _COUNTED.get(frame.f_code) if event == "call" else None
        array = frame.f_locals.get("array")
        if name is not None and (array is None or (array.numel() if isinstance(array, Tensor) else array.size)):
            found[name] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
