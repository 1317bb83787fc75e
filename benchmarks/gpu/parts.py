"""The parts of the benchmark, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.gpu.card import machine
from benchmarks.gpu.job import Job
from benchmarks.gpu.kernels import kernels
from benchmarks.gpu.pair import pair
from benchmarks.gpu.parity import KINDS, parity
from benchmarks.gpu.profile import profile
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


PARTS = (
    Part("machine", "what the machine has, and its copy bandwidth", machine, 15, 10),
    Part("kernels", "attention kernels compiled, and the attention that parts have", kernels, 80, 10),
    *(
        Part(
            f"parity {files or 'others'}",
            f"tests that need a GPU: {files or 'the others'}",
            partial(parity, files=files),
            30,
            15,
        )
        for files in (*KINDS, "")
    ),
    Part("verify 8B", "steps of an 8B target", partial(verify, name="8B"), 45, 25),
    Part("verify 8B unfused", "the same, gpu_layers off", partial(verify, name="8B", fused=False), 32, 20),
    Part("verify 8B other", "the same, the other attention", partial(verify, name="8B", other=True), 32, 20),
    Part(
        "verify 8B other unfused",
        "the same, the other attention, gpu_layers off",
        partial(verify, name="8B", other=True, fused=False),
        32,
        20,
    ),
    Part("profile", "one replay, kernel by kernel", profile, 30, 20),
    Part("pair", "verifier and drafter, two processes on one device", pair, 47, 30),
    Part("rates", "tokens/s with and without drafters, and generate", rates, 55, 40),
    Part("verify pocket", "steps of the pocket target", partial(verify, name="pocket"), 12, 8),
    Part("verify 1B", "steps of a 1B target", partial(verify, name="1B"), 20, 12),
)
"""What is right comes before what is fast, and what there is an aim for before the rest. Together they take no longer than all may."""


def part(name: str) -> Part:
    """Look a part up."""
    return next(each for each in PARTS if each.name == name)
