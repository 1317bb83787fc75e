"""What a profiler saw the device do, in time: kernels and copies on a GPU, operators on a CPU."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerActivity
from torch.profiler import profile as Profiler  # noqa: N812 (its class)

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
ON_HOST = ("cpu_op",)
_NOTHING = re.compile(
    r"::(as_strided|view|_unsafe_view|_reshape_alias|reshape|flatten|unflatten|alias|empty\w*|resolve_\w+|lift_fresh|result_type|detach_?|to|"
    r"t|transpose|permute|unsqueeze|squeeze|expand|slice|select|narrow|chunk|split)$"
)
"""Operators that compute nothing: other ones call them."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """One thing that was done."""

    start: float
    """In microseconds, as `end` is."""
    end: float
    name: str


def profiling(device: str) -> Profiler:
    """A profiler of what is done on a device, to be entered. It slows the host down."""
    activity = ProfilerActivity.CUDA if device.startswith("cuda") else ProfilerActivity.CPU
    return Profiler(
        activities=[activity], acc_events=True
    )  # without it torch 2.11 warns of other cycles, and there is one


def seen(profiler: Profiler, device: str) -> list[Span]:
    """What it saw, from the first to the last. Empty if it sees nothing (on a GPU it needs CUPTI). Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    return sorted(spans(events, ON_DEVICE)) if device.startswith("cuda") else innermost(spans(events, ON_HOST))


def traced(work: Callable[[], object], device: str) -> list[Span]:
    """What a device does for a piece of work. Raises RuntimeError if the profiler fails."""
    with profiling(device) as profiler:
        work()
    return seen(profiler, device)


def spans(events: Sequence[Mapping[str, object]], kinds: Sequence[str]) -> Iterator[Span]:
    """Everything of these kinds, out of a Chrome trace."""
    for event in events:
        if event.get("cat") in kinds:
            start = float(str(event["ts"]))
            yield Span(start, start + float(str(event["dur"])), str(event.get("name", "")))


def innermost(nested: Iterable[Span]) -> list[Span]:
    """Operators call others: those that call none that computes, in order."""
    computing = (span for span in nested if not _NOTHING.search(span.name))
    ordered = sorted(computing, key=lambda span: (span.start, -span.end))
    following = [*(after.start for after in ordered[1:]), float("inf")]
    return [span for span, start in zip(ordered, following, strict=True) if start >= span.end]
