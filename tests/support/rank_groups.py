"""A rank group in this process: real engines over a mesh of threads, and the coordinator's own machine for its waves.

Its target is the whole one on every rank, or, as `ShardedTargets` load it, shared out over them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from specsplit.clock import Clock, SystemClock
from specsplit.features import LAST
from specsplit.membership import GroupRank, StartWave
from specsplit.model import CausalLM, CostCurve, Paced
from specsplit.model.graphs import Buckets
from specsplit.model.layers.sharded import ShardedBlocks
from specsplit.model.lm.load import load_model
from specsplit.ranks.lockstep import Lockstep
from specsplit.records import GraphStatistics
from specsplit.sessions import DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit.values import Endpoint, ModelInfo, PlanChanges, Stopping
from specsplit_coordinator.members.group import Group
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.target.runner import TargetRunner
from tests.support.eventually import eventually
from tests.support.graphs import RecordingCapturer, TorchStatic
from tests.support.meshes import ThreadMesh, mesh_of, revive
from tests.verifier.conftest import decode

DEFAULT = PlanChanges()
PAGE_SIZE = 16


@dataclass
class Ranks:
    """A group in this process, and what stands for its coordinator."""

    verifiers: list[Verifier]
    meshes: list[ThreadMesh]
    group: Group

    async def write(
        self, rank: int, start: str, tokens: int = 12, drafter: Endpoint | None = None, plan: PlanChanges = DEFAULT
    ) -> str:
        prompt = list(start.encode())
        request = DecodeRequest(start, prompt, stopping=Stopping(tokens), plan=plan, drafter=drafter)
        return bytes((await decode(self.verifiers[rank], request))[0]).decode()

    async def parked(self) -> None:
        await eventually(lambda: all(verifier.engine.rank.report.parked for verifier in self.verifiers))

    def connect(self) -> None:
        """What ranks report reaches the coordinator's machine, and the waves that it starts reach all ranks."""
        loop = asyncio.get_running_loop()
        self.group.subscribe(self.begin)
        for number, verifier in enumerate(self.verifiers):
            rank = verifier.engine.rank
            self.group.join(GroupRank("g", number, len(self.verifiers)))
            self.group.on_report(number, rank.report)
            rank.on_report = lambda number=number, rank=rank: loop.call_soon_threadsafe(
                lambda: self.group.on_report(number, rank.report)
            )

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """No rank is heard in here, so no wave is started: sessions that are submitted begin in one turn."""
        told = [verifier.engine.rank.on_report for verifier in self.verifiers]
        for verifier in self.verifiers:
            verifier.engine.rank.on_report = lambda: None
        yield
        for verifier, tell in zip(self.verifiers, told, strict=True):
            verifier.engine.rank.on_report = tell
            tell()

    def begin(self) -> None:
        for verifier in self.verifiers:
            verifier.engine.post(StartWave(self.group.wave))


class ShardedTargets:
    """One target, shared out over the ranks of a mesh. It is loaded once, for every group that is made of it."""

    def __init__(self, folder: Path, size: int, kv_tokens: int = 16_384, buckets: Buckets | None = None) -> None:
        """KV that a group still held when it died is lost, so there has to be enough. Forwards of `buckets` are captured."""
        self.folder = folder
        self.meshes = mesh_of(size)
        self._pages = kv_tokens // PAGE_SIZE
        self._buckets = buckets
        self._started = 0
        torch.set_num_threads(1)
        parts = [load_model(folder, mesh=mesh) for mesh in self.meshes]
        with ThreadPoolExecutor(size) as threads:  # they run their first forwards together
            self._targets = list(threads.map(lambda part: self._target(*part), parts))

    def _target(self, model: PreTrainedModel, info: ModelInfo, blocks: ShardedBlocks) -> CausalLM:
        target = CausalLM(model, info, num_pages=self._pages, page_size=PAGE_SIZE, blocks=blocks)
        layers = list(filter(target.capture.has, range(LAST, model.config.num_hidden_layers + 1)))
        target.capture_graphs(self._buckets, layers, capturer=RecordingCapturer(), attention=TorchStatic(target))
        return target

    @property
    def graphs(self) -> list[GraphStatistics]:
        """What has become of the forwards of every rank."""
        return [target.graph_statistics for target in self._targets]

    async def runners(self, clock: Clock) -> list[TargetRunner]:
        """The ranks of a group that has just been started. Whatever has become of the one before is forgotten."""
        revive(self.meshes)
        self._started += 1
        together = (asyncio.to_thread(Lockstep, mesh, clock, self._started) for mesh in self.meshes)
        ranks = zip(self._targets, await asyncio.gather(*together), strict=True)
        return [TargetRunner(target, Paced(CostCurve(), clock), None, clock, lockstep) for target, lockstep in ranks]


def settings_of(folder: Path, **settings: Any) -> VerifierSettings:
    """Those of a rank that has a coordinator, its plan static unless told otherwise."""
    chosen = {"adaptive": "static", "coordinator": "127.0.0.1:1", **settings}
    return VerifierSettings(model=folder, **chosen)


@asynccontextmanager
async def sharded_ranks(targets: ShardedTargets, **settings: Any) -> AsyncIterator[Ranks]:
    """A group whose ranks share the target; see `ranks_over`."""
    resolved, clock = settings_of(targets.folder, **settings), SystemClock()
    async with running(await targets.runners(clock), targets.meshes, resolved, clock) as ranks:
        yield ranks


@asynccontextmanager
async def ranks_over(
    folder: Path, size: int, *, fault: Callable[[torch.Tensor], None] | None = None, **settings: Any
) -> AsyncIterator[Ranks]:
    """A group that is parked; parked again, closed and checked to be empty on the way out, unless it has failed.

    `fault` is called with the tokens of every forward before it is run.
    """
    resolved, clock, meshes = settings_of(folder, **settings), SystemClock(), mesh_of(size)
    together = await asyncio.gather(*(asyncio.to_thread(Lockstep, mesh, clock, 7) for mesh in meshes))
    runners: list[TargetRunner] = []
    for lockstep in together:
        runner = load_target(resolved, clock)
        runner.lockstep = lockstep
        if fault is not None:
            runner.target.model.register_forward_pre_hook(
                lambda _, __, kwargs, fault=fault: fault(kwargs["input_ids"]), with_kwargs=True
            )
        runners.append(runner)
    async with running(runners, meshes, resolved, clock) as ranks:
        yield ranks


@asynccontextmanager
async def running(
    runners: Sequence[TargetRunner], meshes: list[ThreadMesh], settings: VerifierSettings, clock: Clock
) -> AsyncIterator[Ranks]:
    """The verifiers of a group."""
    verifiers = [Verifier(settings, runner, clock) for runner in runners]
    ranks = Ranks(verifiers, meshes, Group(len(verifiers)))
    ranks.connect()
    try:
        yield ranks
        if not verifiers[0].failed.is_set():
            await ranks.parked()
    finally:
        for verifier in verifiers:
            await verifier.close()
    for verifier in verifiers:
        assert verifier.load().sessions == 0 or verifier.failed.is_set()
