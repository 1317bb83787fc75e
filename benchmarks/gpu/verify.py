"""What a step costs by the number of its tokens, against the time in which the device can read what the step must read.

A *step* here is a call of `TargetRunner.run`, on the host's clock: from rows to the accepted tokens on the host. So it holds all that the
engine does for a step but its commit and its messages. The memory floor is bytes over measured copy bandwidth: all weights once, of the
embeddings only those that are multiplied with, and the KV of all tokens that the step sees.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.gpu.card import bandwidths, wait
from benchmarks.gpu.job import Job
from benchmarks.gpu.targets import CONFIGS, name_of, write_config
from benchmarks.spread import spread
from specsplit.clock import SystemClock
from specsplit.model import CausalLM, PageTable
from specsplit.settings import VerifierSettings
from specsplit.speculation import Draft
from specsplit.values import Sampling
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.records.step import ChunkInput, StepInput, TreeInput
from specsplit_verifier.target.runner import TargetRunner

WARM_UP = 10
TOPK = 2
"""Children of a node in the trees that are verified."""
KV_TOKENS = 4096


def verify(job: Job, name: str, *, other: bool = False, fused: bool = True) -> None:
    """Measure steps of the target called `name`: pocket, or one of CONFIGS.

    other: with the other attention that can be had, in the place of the one that all parts have. fused: False is gpu_layers = off.
    """
    told: dict[str, object] = {} if fused else {"gpu_layers": "off"}
    if other:
        if len(job.attention) < 2 or "attention" in job.settings:
            job.findings.skipped(name, f"there is no other attention: {_only(job)}")
            return
        told["attention"] = job.attention[1]
    what = ", ".join([name, *([job.attention[1]] if other else []), *([] if fused else ["gpu_layers off"])])
    Measurement(job, what, loaded(job, name, what, **told)).run()


def _only(job: Job) -> str:
    if "attention" in job.settings:
        return f"{job.settings['attention']} is set"
    return (
        f"{job.attention[0]} is all that can be had" if job.attention else "the part kernels did not say what there is"
    )


def loaded(job: Job, name: str, what: str, **told: object) -> TargetRunner:
    """The target called `name`, whose forwards are captured when they are wanted; figures of it are figures of `what`."""
    with ExitStack() as stack:
        folder, random = job.target, name in CONFIGS
        if random:
            into = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder = write_config(name_of(name, tiny=job.scale.tiny), into)
        return _loaded(job, what, job.verifier(folder, random_weights=random, kv_tokens=KV_TOKENS, **told))


def _loaded(job: Job, name: str, settings: VerifierSettings) -> TargetRunner:
    started = time.perf_counter()
    runner = load_target(settings, SystemClock(), lazily=True)
    job.findings.figure(name, "loaded, ready to step", time.perf_counter() - started, "s")
    job.findings.fact(f"attention of {name}", runner.target.attention)
    return runner


@dataclass(frozen=True, slots=True)
class Bytes:
    """What a step of one session reads at least."""

    weights: int
    kv_per_token: int

    @classmethod
    def of(cls, target: CausalLM) -> Bytes:
        """The bytes of all tensors of the model, each counted once; those that are only looked up in are left out."""
        model, kv = target.model, target.kv
        looked_up, head = model.get_input_embeddings(), model.get_output_embeddings()
        tied = head is None or head.weight is looked_up.weight
        read = {each for each in model.parameters() if tied or each is not looked_up.weight}
        weights = sum(each.nbytes for each in read)
        return cls(weights, kv.nbytes // kv.num_slots)

    def read(self, tokens: int) -> int:
        """Bytes of a step that sees so many tokens."""
        return self.weights + tokens * self.kv_per_token


class Measurement:
    """Steps of one target, a tree of each size behind the same committed tokens."""

    def __init__(self, job: Job, name: str, runner: TargetRunner) -> None:
        self._job = job
        self._name = name
        self._runner = runner
        self._chance = torch.Generator().manual_seed(0)
        sizes, context = job.scale.tree_tokens, runner.target.info.max_context
        self._committed = min(job.scale.committed, context - max(sizes))
        self._table = PageTable(runner.target.pool)
        self._table.reserve(self._committed + max(sizes))

    def run(self) -> None:
        """Measure as many sizes as there is time for."""
        self.prefill()
        seconds: dict[int, float] = {}
        for size in self._job.scale.tree_tokens:
            if self._job.left_s < 2:
                self._job.findings.skipped(f"{self._name}, {_tokens(size)}", "the time of the part was over")
                continue
            seconds[size] = self.measure(size, Sampling())
            if size > 1 and 1 in seconds:
                self._figure(f"{_tokens(size)} / {_tokens(1)}", seconds[size] / seconds[1])
        self.measure(1, Sampling(temperature=1.0, seed=7), ", sampled")
        if 1 in seconds:
            self._against_the_floor(seconds[1])

    def _against_the_floor(self, step_s: float) -> None:
        floor_s = self.floor_s()
        self._figure("memory floor", floor_s * 1e3, "ms")
        self._figure("step / memory floor", step_s / floor_s)

    def floor_s(self) -> float:
        """Seconds in which the device copies as much as a step of 1 token reads."""
        bytes_read = Bytes.of(self._runner.target).read(self._committed + 1)
        size = max(self._job.scale.copy_bytes)
        rate = spread(bandwidths(self._job.device, size, self._job.scale.repeats)).median
        self._figure("read by a step of 1 token", bytes_read / 1e9, "GB")
        return bytes_read / rate

    def measure(self, size: int, sampling: Sampling, suffix: str = "") -> float:
        """The median of a step of `size` tokens, in seconds."""
        step, steps, forwards = self.step(size, sampling), list[float](), list[float]()
        self._runner.target.capture_for(step.rows)
        for repeat in range(WARM_UP + self._job.scale.repeats):
            wait(self._job.device)
            started = time.perf_counter()
            output = self._runner.run(step)
            if repeat >= WARM_UP:
                steps.append(time.perf_counter() - started)
                forwards.append(output.forward_s)
            for error in output.failed.values():
                raise error
        self._figures(f"step of {_tokens(size)}{suffix}", steps)
        self._figures(f"forward of {_tokens(size)}{suffix}", forwards)
        return spread(steps).median

    def prefill(self) -> None:
        """Compute the KV of the tokens in front of all trees."""
        tokens = self._drawn(self._committed)
        chunk = ChunkInput.chunk(tokens, self._table.upto(self._committed), session=0, first=0)
        for error in self._runner.run(StepInput(chunks=[chunk])).failed.values():
            raise error

    def step(self, size: int, sampling: Sampling) -> StepInput:
        """A step that verifies a tree of `size` tokens."""
        tokens, parents = self._drawn(size), [(node - 1) // TOPK if node else -1 for node in range(size)]
        depths = [0] * size
        for node in range(1, size):
            depths[node] = depths[parents[node]] + 1
        positions = [self._committed + depth for depth in depths]
        draft = Draft(range(size), tokens, parents, positions, [0.0] * size)
        pages = self._table.upto(self._committed + size)
        return StepInput([TreeInput.tree(tokens, parents, pages, session=0, draft=draft, sampling=sampling)])

    def _drawn(self, count: int) -> list[int]:
        size = self._runner.target.info.vocabulary.size
        return torch.randint(size, (count,), generator=self._chance).tolist()

    def _figure(self, name: str, value: float, unit: str = "") -> None:
        self._job.findings.figure(self._name, name, value, unit)

    def _figures(self, name: str, seconds: list[float]) -> None:
        self._job.findings.figures_of(self._name, name, [each * 1e3 for each in seconds], "ms")


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"
