"""A drafter as a process: it loads its model, and joins the cluster."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specsplit.clock import Clock, SystemClock
from specsplit.errors import LoadError, SpecsplitError
from specsplit.features import FeatureNeed
from specsplit.host import host_of
from specsplit.interpreter import freeze_heap, switch_often
from specsplit.lookup import UNSHARED, SharedTexts
from specsplit.model_thread import ModelThread
from specsplit.ranks.environment import ALONE, RankEnvironment
from specsplit.ranks.lockstep import Lockstep
from specsplit.ranks.mesh import Mesh
from specsplit.rpc import DRAFTER_SERVICE, Coordinators, Memberships, Server, Service, registration, run_service
from specsplit.settings import DrafterSettings
from specsplit.v1 import drafter_pb2_grpc
from specsplit.values import DrafterKind
from specsplit_drafter.drafts.grammars import DraftGrammars
from specsplit_drafter.drafts.proposer import UNBOUNDED, Proposer
from specsplit_drafter.edge.servicer import DrafterServicer
from specsplit_drafter.edge.telemetry import Telemetry
from specsplit_drafter.edge.updates import Updates
from specsplit_drafter.engine.engine import Engine, Outbox
from specsplit_drafter.engine.session_table import Pace, SessionTable, TableLimits, unpaced
from specsplit_drafter.kinds.ngram import NgramProposer

if TYPE_CHECKING:  # an ngram drafter runs without torch
    from specsplit.model.heads import BlockHead, Head
    from specsplit.model.layers.sharded import TensorMesh
    from specsplit_drafter.drafts.draft_model import DraftModel

_log = logging.getLogger(__name__)
MOST_NODES = 4096
"""Nodes of one session with KV beside its text: what a verifier takes of them unless it is told otherwise (max_nodes)."""
_DESCENTS_AT_LOAD = 8
"""Captured before a drafter joins, so that its first sessions do not wait for them: contexts of 257 to 1,024 tokens."""


def main(settings: DrafterSettings) -> int:
    """Run one drafter in this process until it is told to leave; the exit status. Raises SpecsplitError if it cannot start."""
    switch_often()  # two threads hand each other small things all the time
    environment = RankEnvironment.of(settings, os.environ)
    return run_service("drafter", environment.settings(settings), partial(service_of, environment=environment))


def service_of(settings: DrafterSettings, environment: RankEnvironment = ALONE) -> Service[Drafter]:
    """Build the drafter's process."""
    clock, server = SystemClock(), Server(settings, "drafter", services=[DRAFTER_SERVICE], session_methods=["Draft"])
    telemetry = Telemetry(settings, server.tracing)
    updates = Updates(settings, lambda other: load_proposer(other, clock))
    servicer = DrafterServicer(telemetry, settings.max_message_bytes, updates)
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(servicer, server.grpc)

    async def load() -> Drafter:
        thread = ModelThread("drafter-engine")
        table = await thread.load(partial(load_table, settings, clock, environment.number, lazily=True))
        updates.loaded()
        table.rounds = telemetry.rounds()
        drafter = Drafter(table, servicer, clock, servicer.end_streams, thread)
        servicer.engine = drafter.engine
        telemetry.watch(drafter.engine.statistics)
        return drafter

    return Service(settings, server, telemetry.metrics, load, partial(_member, settings, server), environment)


def _member(settings: DrafterSettings, server: Server, drafter: Drafter, coordinators: Coordinators) -> Memberships:
    """Build the drafter's membership of a cluster."""
    return Memberships(
        coordinators,
        registration(settings, "drafter", server, drafter.engine.info),
        drafter.engine.load,
        rank=drafter.engine.rank,
        weights_version=lambda: drafter.engine.weights_version,
        on_start_wave=drafter.engine.begin_wave,
        on_tracing=server.tracing.apply,
        on_drain=server.drain,
    )


class Drafter:
    """The engine thread, as the event loop sees it."""

    def __init__(
        self,
        table: SessionTable,
        outbox: Outbox,
        clock: Clock,
        on_drained: Callable[[], None],
        thread: ModelThread | None = None,
    ) -> None:
        """Starts the engine. `on_drained` is called when no session is left of a drain.

        `thread`: on which the model was loaded, and is run; None: a new one.
        """
        self.failed = asyncio.Event()
        """Set if the engine thread died: a drafter without one must not go on saying SERVING."""
        self._loop = asyncio.get_running_loop()
        self._on_drained = on_drained
        self.engine = Engine(table, clock, outbox, lambda: self._set(self.failed), thread)
        self.engine.start()

    async def drained(self) -> None:
        """Take no new sessions, and wait for those that run, on other ranks too. What is left when the time is up is handed back."""
        if self.failed.is_set():
            return
        idle, rank = asyncio.Event(), self.engine.rank
        self.engine.drain(lambda: self._set(idle))
        try:
            await idle.wait()
            if rank is not None:
                await rank.unneeded(self.failed)
            self._on_drained()
        except asyncio.CancelledError:
            self.engine.hand_back()
            await self.close()  # verifiers get their refusals, and spans are made, before the server ends
            raise

    async def close(self) -> None:
        """End the engine thread. A second call does nothing."""
        await asyncio.to_thread(self.engine.stop)

    def _set(self, event: asyncio.Event) -> None:
        """Set an event of the loop from another thread."""
        self._loop.call_soon_threadsafe(event.set)


def load_table(settings: DrafterSettings, clock: Clock, rank: int = 0, *, lazily: bool = False) -> SessionTable:
    """Make the proposer of these settings, with no sessions yet. Takes as long as loading the model does. Raises LoadError and RankLost.

    `lazily`: see `load_proposer`.
    """
    pace = _pace(settings, clock)
    levels = settings.expand_levels if pace is unpaced else 1  # the curve of a paced device is that of one level
    limits = TableLimits(settings.max_sessions, settings.expand_width, settings.node_us, levels, host_of(settings))
    table = SessionTable(load_proposer(settings, clock, rank, lazily=lazily), limits, clock, pace)
    freeze_heap()
    return table


def load_proposer(settings: DrafterSettings, clock: Clock, rank: int = 0, *, lazily: bool = False) -> Proposer:
    """Load the proposer of these settings, or this rank's part of it. Raises InvalidRequest for the device, LoadError and RankLost.

    `lazily`: most of what is to be captured is left to `Proposer.prepare`.
    """
    if settings.kind.needs_model:
        return _with_model(settings, clock, rank, lazily=lazily)
    if settings.dp_size > 1:
        raise LoadError(f"a drafter of kind {settings.kind.value} has no model that ranks could share (dp_size)")
    return NgramProposer(settings.children, settings.max_context or UNBOUNDED, _shared_texts(settings))


def _shared_texts(settings: DrafterSettings) -> SharedTexts:
    if settings.ngram_shares == "session":
        return UNSHARED
    everybody = settings.ngram_shares == "all"
    return SharedTexts(settings.ngram_shared_tokens, settings.ngram_identities, everybody=everybody)


def _with_model(settings: DrafterSettings, clock: Clock, rank: int, *, lazily: bool) -> Proposer:
    if settings.model is None:
        raise LoadError(f"a drafter of kind {settings.kind.value} needs a model folder (model)")
    # An ngram drafter runs without torch: these imports take seconds.
    import torch  # noqa: PLC0415

    from specsplit.model.graphs import CudaCapturer  # noqa: PLC0415
    from specsplit.model.ranks.mesh import TorchMesh  # noqa: PLC0415
    from specsplit.model.tensors.device import check_device  # noqa: PLC0415
    from specsplit_drafter.drafts.group_forwards import GroupForwards  # noqa: PLC0415
    from specsplit_drafter.kinds.model_proposer import ModelProposer  # noqa: PLC0415

    check_device(settings.device)
    torch.set_num_threads(settings.threads)
    if settings.kind.drafts_blocks:
        return _with_blocks(settings, settings.model)
    load = _load_head if settings.kind.is_head else _load_standalone
    if settings.dp_size == 1:
        model = load(settings, settings.model, None, lazily)
        proposer = ModelProposer(model, settings.children, grammars=_grammars(settings, model.vocab_size))
        if settings.cuda_graphs == "auto" and settings.device.startswith("cuda"):
            proposer.capture_descents(CudaCapturer(torch.device(settings.device)))
            proposer.expect_descents(settings.expand_levels, settings.expand_width)
            for _ in range(_DESCENTS_AT_LOAD):
                proposer.prepare()
        return proposer
    mesh = TorchMesh(rank, settings.dp_size, settings.rank_timeout_s, device=settings.device)
    with telling(mesh):
        model = load(settings, settings.model, mesh, lazily)
        lockstep = Lockstep(mesh, clock, drawn=secrets.randbits(62))
        grammars = _grammars(settings, model.vocab_size)
        return ModelProposer(model, settings.children, group=GroupForwards(model, lockstep, clock), grammars=grammars)


@contextmanager
def telling(mesh: Mesh) -> Iterator[None]:
    """Abort the group if loading fails in here: the other ranks wait for this one."""
    try:
        yield
    except Exception as error:
        mesh.abort(str(error) if isinstance(error, SpecsplitError) else f"{type(error).__name__}: {error}")
        raise


def _load_standalone(settings: DrafterSettings, folder: Path, mesh: TensorMesh | None, lazily: bool) -> DraftModel:
    from specsplit.model import CausalLM  # noqa: PLC0415
    from specsplit.model.graphs import Buckets  # noqa: PLC0415
    from specsplit.model.lm.compiled import compile_unfused  # noqa: PLC0415
    from specsplit.model.pages.room import kv_room  # noqa: PLC0415
    from specsplit_drafter.kinds.standalone import StandaloneModel  # noqa: PLC0415

    model = CausalLM.load(
        folder,
        num_pages=kv_room(settings, 1, MOST_NODES),
        page_size=1,
        dtype=settings.dtype,
        device=settings.device,
        backend=settings.attention,
        kv_cache_dtype=settings.kv_cache_dtype,
        mesh=mesh,
        cpu_layers=settings.replaces_cpu_layers,
        gpu_layers=settings.replaces_gpu_layers,
        max_context=settings.max_context,
        latent_cache=settings.latent_cache == "auto",
    )
    if model.states is not None:
        raise LoadError(
            f"model folder {folder} cannot draft: it has recurrent layers, which are served as a target and not as a draft; choose a draft "
            "model of attention layers, or a head"
        )
    if settings.compile == "regional":
        model.compile_layers()
    elif settings.compiles_the_rest:
        compile_unfused(model)
    if _captures(settings):
        model.capture_graphs(Buckets(settings.cuda_graph_tokens, settings.cuda_graph_rows), lazily=lazily)
    return StandaloneModel(model)


def _load_head(settings: DrafterSettings, folder: Path, mesh: TensorMesh | None, lazily: bool) -> DraftModel:
    from specsplit.model.graphs import Buckets  # noqa: PLC0415
    from specsplit.model.heads import load_head, projected  # noqa: PLC0415
    from specsplit.model.layers.regional import compile_layers  # noqa: PLC0415
    from specsplit.model.pages.room import kv_room  # noqa: PLC0415
    from specsplit_drafter.kinds.heads import HeadModel  # noqa: PLC0415

    target = settings.target
    if target is None and settings.kind is DrafterKind.MULTI_LAYER_EAGLE:
        target = folder  # MTP layers as they are published, inside their target's folder
    if target is None:
        raise LoadError(
            f"a drafter of kind {settings.kind.value} needs the folder of the target it was made for (target)"
        )
    head = load_head(
        folder,
        target,
        settings.kind,
        dtype=settings.dtype,
        device=settings.device,
        mesh=mesh,
        max_context=settings.max_context,
    )
    need = _fit_out(head, settings)
    if settings.feature_projection:
        need = projected(need, folder)
    slots = kv_room(settings, 1, MOST_NODES)
    model = HeadModel(head, slots, need, settings.attention, settings.kv_cache_dtype)
    if settings.compile == "regional":
        compile_layers(head.layers)
    if _captures(settings):
        model.capture_graphs(Buckets(settings.cuda_graph_tokens, settings.cuda_graph_rows), lazily=lazily)
    return model


def _with_blocks(settings: DrafterSettings, folder: Path) -> Proposer:
    from specsplit.model.heads import load_block_head  # noqa: PLC0415
    from specsplit.model.pages.room import kv_room  # noqa: PLC0415
    from specsplit_drafter.kinds.block_model import BlockModel  # noqa: PLC0415
    from specsplit_drafter.kinds.block_proposer import BlockProposer  # noqa: PLC0415

    kind = settings.kind.value
    if settings.dp_size > 1:
        raise LoadError(f"a drafter of kind {kind} cannot be shared out over ranks (dp_size)")
    if settings.compile == "regional":
        raise LoadError(f"the layers of a drafter of kind {kind} cannot be compiled (compile = {settings.compile})")
    if settings.target is None:
        raise LoadError(f"a drafter of kind {kind} needs the folder of the target it was made for (target)")
    head = load_block_head(
        folder,
        settings.target,
        settings.kind,
        dtype=settings.dtype,
        device=settings.device,
        max_context=settings.max_context,
    )
    need = _fit_out(head, settings)
    model = BlockModel(head, kv_room(settings, 1), need, settings.attention, settings.kv_cache_dtype)
    return BlockProposer(model, settings.children, grammars=_grammars(settings, head.shape.vocabulary.size))


def _fit_out(head: Head | BlockHead, settings: DrafterSettings) -> FeatureNeed:
    """Give a head the layers that these settings want -> what it needs of its target, in the numbers that they want."""
    if settings.replaces_cpu_layers:
        head.use_cpu_layers()
    if settings.replaces_gpu_layers:
        head.use_gpu_layers()
    return replace(head.shape.need, format=settings.feature_format)


def _grammars(settings: DrafterSettings, vocab_size: int) -> DraftGrammars:
    """Hold drafts to constraints by the tokenizer of the target's folder, which heads are given, or of the draft model's own."""
    return DraftGrammars(settings.target or settings.model, vocab_size).read()


def _captures(settings: DrafterSettings) -> bool:
    """Tell whether forwards are to be captured. Those of a group are not: its ranks agree on rows by step, and not on graphs."""
    auto = settings.cuda_graphs == "auto"
    if auto and settings.dp_size > 1 and settings.device.startswith("cuda"):
        _log.warning("every forward of this drafter is run eagerly: a group of drafters (dp_size) has no CUDA graphs")
    return auto and settings.dp_size == 1


def _pace(settings: DrafterSettings, clock: Clock) -> Pace:
    if not settings.paced_expansion_base_ms and not settings.paced_expansion_per_token_us:
        return unpaced
    from specsplit.model import CostCurve, Paced  # noqa: PLC0415

    curve = CostCurve(settings.paced_expansion_base_ms, settings.paced_expansion_per_token_us)
    return Paced(curve, clock).step
