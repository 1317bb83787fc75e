"""The parts of the benchmark, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.gpu.card import copying
from benchmarks.gpu.job import Job
from benchmarks.gpu.kernels import kernels
from benchmarks.gpu.pair import pair
from benchmarks.gpu.parity import parity
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
    Part("parity", "tests that need a GPU", parity, 150, 30, cpu=False),
    Part("kernels", "attention kernels", kernels, 90, 10, cpu=False),
    Part("copy", "copy bandwidth", copying, 30, 10),
    Part("verify tiny", "steps of a tiny target", partial(verify, name="tiny"), 60, 10, gpu=False),
    Part("verify pocket", "steps of the pocket target", partial(verify, name="pocket"), 45, 15),
    Part("verify 8B", "steps of an 8B target", partial(verify, name="8B"), 100, 40, cpu=False),
    Part("pair", "verifier and drafter, two processes on one device", pair, 100, 40),
    Part("rates", "tokens/s with and without drafters, and generate", rates, 150, 50),
    Part("verify 1B", "steps of a 1B target", partial(verify, name="1B"), 60, 25, cpu=False),
)
"""What there is an aim for comes before what there is none for."""


def part(name: str) -> Part:
    """Look a part up."""
    return next(each for each in PARTS if each.name == name)
