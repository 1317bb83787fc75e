"""The verifier as a process: it loads the target, and joins the cluster."""

from __future__ import annotations

import logging
import os
import secrets
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import torch

from specsplit.clock import Clock, SystemClock
from specsplit.errors import InvalidRequest, SpecsplitError
from specsplit.generation.delivery import Delivery
from specsplit.interpreter import freeze_heap, switch_often
from specsplit.membership import HandOver, PlanOrder, Roster, StartWave
from specsplit.model.graphs import Buckets
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.lm.compiled import compile_unfused
from specsplit.model.lm.paced import CostCurve, Paced
from specsplit.model.lm.revision import Revision, check_config
from specsplit.model.pages.room import MemoryShare, kv_room
from specsplit.model.ranks.mesh import TorchMesh
from specsplit.model.ranks.tensor_group import TensorGroup
from specsplit.model.tensors.device import check_device
from specsplit.model_thread import ModelThread
from specsplit.observe import fields
from specsplit.ranks.environment import ALONE, RankEnvironment
from specsplit.ranks.lockstep import Lockstep
from specsplit.rpc import (
    VERIFIER_SERVICE,
    VLLM_ENGINE_SERVICE,
    Coordinators,
    Memberships,
    Server,
    Service,
    registration,
    run_service,
)
from specsplit.settings import VerifierSettings
from specsplit.v1 import verifier_pb2_grpc
from specsplit.values import AS_SET
from specsplit.vllm_engine.servicer import VllmEngineServicer
from specsplit_verifier.edge.engine import VerifierEngine
from specsplit_verifier.edge.servicer import VerifierServicer
from specsplit_verifier.edge.updates import Updates
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.policy.adaptive.choice import controller_for
from specsplit_verifier.report.reporter import Reporter
from specsplit_verifier.report.telemetry import Telemetry
from specsplit_verifier.target.extraction import Extractor, Projection
from specsplit_verifier.target.runner import TargetRunner, profile
from specsplit_verifier.target.split import blaming, captured_layers, load_part, meet, run_follower
from specsplit_verifier.target.states_room import make_room

_log = logging.getLogger(__name__)
_TRIED_TOKENS: Final = 4096
"""Room in the KV of a model whose weights are only tried: for the texts of the checks at load, all at once."""


def load_target(settings: VerifierSettings, clock: Clock, number: int = 0, *, lazily: bool = False) -> TargetRunner:
    """Load the target, or the part of it that process `number` has, and set this process up to run it.

    `lazily`: most of the forwards that are to be captured are left to `TargetRunner.prepare`, where it is alone.
    Raises InvalidRequest for a device that is not there, LoadError, saying why, if it cannot be served, and RankLost.
    """
    check_device(settings.device)
    torch.set_num_threads(settings.threads)
    switch_often()  # three threads hand each other small things in every step
    if settings.tp_size > 1:
        return _leading(settings, clock, meet(settings, number))
    if settings.dp_size == 1:
        return _loaded(settings, clock, None, lazily=lazily)
    mesh = TorchMesh(number, settings.dp_size, settings.rank_timeout_s, device=settings.device)
    try:
        return _loaded(settings, clock, mesh)
    except Exception as error:
        mesh.abort(str(error) if isinstance(error, SpecsplitError) else f"{type(error).__name__}: {error}")
        raise


def _leading(settings: VerifierSettings, clock: Clock, group: TensorGroup) -> TargetRunner:
    with blaming(group):
        target = load_part(settings, group)
        target.lead(group)
        return _runner(settings, clock, target, Lockstep(group, clock, drawn=secrets.randbits(62)))


def _loaded(settings: VerifierSettings, clock: Clock, mesh: TorchMesh | None, *, lazily: bool = False) -> TargetRunner:
    target = _read(settings, settings.model, kv_room(settings, settings.page_size), mesh, settings.adapters_dir)
    if settings.compile == "regional":
        target.compile_layers()
    elif settings.compiles_the_rest:
        compile_unfused(target)
    layers = captured_layers(settings.cuda_graph_layers, target)
    target.capture_graphs(Buckets.of(settings), layers, lazily=lazily and mesh is None)
    if target.states is not None:
        make_room(target.states, settings)
    lockstep = None if mesh is None else Lockstep(mesh, clock, drawn=secrets.randbits(62))
    return _runner(settings, clock, target, lockstep)


def _read(
    settings: VerifierSettings,
    folder: Path,
    num_pages: int | MemoryShare,
    mesh: TorchMesh | None = None,
    adapters: Path | None = None,
) -> CausalLM:
    return CausalLM.load(
        folder,
        num_pages=num_pages,
        page_size=settings.page_size,
        dtype=settings.dtype,
        device=settings.device,
        inflate_layers=settings.inflate_layers,
        random_weights=settings.random_weights,
        backend=settings.attention,
        kv_cache_dtype=settings.kv_cache_dtype,
        mesh=mesh,
        cpu_layers=settings.replaces_cpu_layers,
        gpu_layers=settings.replaces_gpu_layers,
        max_context=settings.max_context,
        latent_cache=settings.latent_cache == "auto",
        window_tokens=settings.window_tokens,
        adapters=adapters,
    )


def read_revision(settings: VerifierSettings, served: CausalLM, folder: Path, name: str) -> Revision:
    """Read and check other weights of the target, beside it: until they are copied there is memory for both. Adapters are read again.

    Raises Incompatible if they are of another model, LoadError, saying why, if they cannot be read or served.
    """
    check_config(served, folder)
    num_pages = min(served.pool.total_pages, _TRIED_TOKENS // settings.page_size)
    return Revision(name, _read(settings, folder, num_pages, adapters=settings.adapters_dir), served)


def _runner(settings: VerifierSettings, clock: Clock, target: CausalLM, lockstep: Lockstep | None) -> TargetRunner:
    projection = Projection.load(settings.feature_projection, target) if settings.feature_projection else None
    paced = Paced(CostCurve(settings.paced_step_base_ms, settings.paced_step_per_token_us), clock)
    runner = TargetRunner(target, paced, Extractor(target, projection), clock, lockstep)
    if paced.is_free:  # else steps take what a benchmark wants
        runner.profile = tuple(profile(runner))
    freeze_heap()
    return runner


def main(settings: VerifierSettings) -> int:
    """Run the verifier in this process until it is told to leave; the exit status. Raises SpecsplitError if it cannot start."""
    environment = RankEnvironment.of(settings, os.environ)
    own = environment.settings(settings)
    if environment.follows:
        return run_follower(own, environment)
    return run_service("verifier", own, partial(service_of, environment=environment))


def service_of(settings: VerifierSettings, environment: RankEnvironment = ALONE) -> Service[Served]:
    """Build the verifier's process. Raises InvalidRequest for a wrong file of tiers, before anything is loaded."""
    controller_for(settings, AS_SET)
    clock = SystemClock()
    services = [VERIFIER_SERVICE, VLLM_ENGINE_SERVICE]
    server = Server(settings, "verifier", services=services, session_methods=["Decode", "DecodeSessions", "Generate"])
    updates = Updates(settings, partial(read_revision, settings))
    servicer, engine = VerifierServicer(updates, server.refusal), VerifierEngine(settings, server)
    delivery = Delivery(engine, max_unread_bytes=settings.max_unread_bytes, unread_s=settings.unread_s)
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server.grpc)
    VllmEngineServicer(delivery, engine, settings.model, clock, settings.max_message_bytes).add_to(server.grpc)
    telemetry = Telemetry(settings, server.tracing, clock, environment.rank)

    async def load() -> Served:
        thread = ModelThread("engine")
        runner = await thread.load(partial(load_target, settings, clock, environment.number, lazily=True))
        verifier = servicer.verifier = engine.verifier = Verifier(settings, runner, clock, telemetry, thread)
        info = verifier.info
        facts = {"model": info.model, "vocabulary": info.vocabulary, "max_context": info.max_context}
        windows = runner.target.pool.windows
        graphs = runner.target.graph_statistics
        runs = {"attention": runner.target.attention, "graphs": graphs.captured, "graph_bytes": graphs.nbytes}
        if windows is not None:
            runs["window_pages"] = windows.total_pages
        _log.info("loaded", extra=fields(**facts, **runs))
        if settings.window_kv_tokens is not None and windows is None:
            _log.warning(
                "window_kv_tokens has no effect: it is as much as kv_tokens, or the target has no layers that see a window beside others "
                "that see all tokens, or it has recurrent layers or is split over processes, where all layers have room for kv_tokens"
            )
        return Served(verifier, engine, delivery, servicer)

    return Service(
        settings,
        server,
        telemetry.metrics,
        load,
        lambda served, dialled: _Member(settings, server, served.verifier, dialled, clock).membership,
        environment,
    )


class Served:
    """A verifier with its edges: what the process serves."""

    def __init__(
        self, verifier: Verifier, engine: VerifierEngine, delivery: Delivery, servicer: VerifierServicer
    ) -> None:
        self.verifier = verifier
        self._servicer = servicer
        self.failed = verifier.failed
        """Set if nothing can be decoded any more."""
        self._engine = engine
        self._delivery = delivery

    async def drained(self) -> None:
        """Return once no answer is on its way to a caller, and no session is left, here or on another rank of the group."""
        await self._delivery.delivered()
        await self.verifier.drained()
        await self._servicer.end_streams()

    async def close(self) -> None:
        """End the engine and what stands before it."""
        self._engine.close()
        await self.verifier.close()


class _Member:
    """Build the verifier's membership of a cluster: it receives the drafters that it may use, and reports those that it lost."""

    def __init__(
        self,
        settings: VerifierSettings,
        server: Server,
        verifier: Verifier,
        coordinators: Coordinators,
        clock: Clock,
    ) -> None:
        self._verifier = verifier
        self._reporter = Reporter(settings.plan, verifier.engine.statistics, lambda: verifier.control, clock)
        self.membership = Memberships(
            coordinators,
            registration(settings, "verifier", server, verifier.info),
            verifier.load,
            plan=lambda: verifier.plan,
            speculation=self._reporter.report,
            prefixes=lambda: verifier.engine.statistics().prefixes,
            rank=verifier.engine.rank,
            weights_version=lambda: verifier.engine.weights_version,
            adapters=lambda: verifier.info.adapters,
            on_roster=self._on_roster,
            on_plan=self._on_plan,
            on_tracing=server.tracing.apply,
            on_hand_over=self._on_hand_over,
            on_start_wave=lambda number: verifier.engine.post(StartWave(number)),
            on_drain=server.drain,
        )
        verifier.on_lost = self._on_lost
        verifier.on_weights = self.membership.report_now

    def _on_roster(self, roster: Roster) -> None:
        self._reporter.names = {endpoint.address: endpoint.member_id for endpoint in roster.drafters}
        self._verifier.engine.post(roster)

    def _on_plan(self, order: PlanOrder) -> None:
        """Obey an order, unless it does not go with the settings of this verifier, which keeps its own controller then."""
        control = order.control
        try:
            self._verifier.replan(order.changes, control)
        except InvalidRequest as error:
            wanted = f"adaptive = {control.adaptive}, max_draft_tokens = {control.max_draft_tokens}"
            _log.warning("the order (%s) does not go with the settings here, keeping their own: %s", wanted, error)
            self._verifier.replan(order.changes)

    def _on_hand_over(self, order: HandOver) -> None:
        for address, member_id in self._reporter.names.items():
            if member_id == order.source:
                self._verifier.engine.post(replace(order, source=address))

    def _on_lost(self, address: str) -> None:
        names = self._reporter.names
        if address in names:
            self.membership.report_lost(names[address])
