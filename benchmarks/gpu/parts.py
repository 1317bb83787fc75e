"""The parts of the benchmark, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.gpu.card import copying
from benchmarks.gpu.job import Job
from benchmarks.gpu.kernels import kernels
from benchmarks.gpu.pair import pair
from benchmarks.gpu.parity import KINDS, parity
from benchmarks.gpu.rates import rates
from benchmarks.gpu.verify import verify


@dataclass(frozen=True, slots=True)
class Part:
    """Something that is measured by itself, in a process of its own."""

    name: str
    what: str
    run: Callable[[Job], None]
    most_s: float
    """The part is stopped after so many seconds."""
    least_s: float
    """With less time than this left it is not begun."""
    cpu: bool = True
    """False: there is nothing in it that a CPU could do."""
    gpu: bool = True
    """False: it stands for another part where there is no GPU."""


PARTS = (
    Part("copy", "the device, and its copy bandwidth", copying, 15, 10),
    Part("kernels", "attention kernels", kernels, 80, 10, cpu=False),
    *(
        Part(
            f"parity {files}".rstrip(),
            f"tests that need a GPU: {files or 'the others'}",
            partial(parity, files=files),
            35,
            15,
            cpu=False,
        )
        for files in (*KINDS, "")
    ),
    Part("verify tiny", "steps of a tiny target", partial(verify, name="tiny"), 60, 10, gpu=False),
    Part("verify 8B", "steps of an 8B target", partial(verify, name="8B"), 50, 30, cpu=False),
    Part(
        "verify 8B triton",
        "the same by Triton's kernels",
        partial(verify, name="8B", attention="triton"),
        45,
        30,
        cpu=False,
    ),
    Part("pair", "verifier and drafter, two processes on one device", pair, 50, 30),
    Part("rates", "tokens/s with and without drafters, and generate", rates, 60, 40),
    Part("verify pocket", "steps of the pocket target", partial(verify, name="pocket"), 15, 10),
    Part("verify 1B", "steps of a 1B target", partial(verify, name="1B"), 25, 15, cpu=False),
)
"""What is right comes before what is fast, and what there is an aim for before the rest. Together they take no longer than all may."""


def part(name: str) -> Part:
    """Look a part up."""
    return next(each for each in PARTS if each.name == name)
