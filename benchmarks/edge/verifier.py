"""A verifier without a target: the edges of a real one, behind which every step gives each session one token, on the clock.

`python -m benchmarks.edge.verifier COORDINATOR MODEL` joins a coordinator, and writes its own address.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import grpc

from benchmarks.edge import pace
from benchmarks.edge.folder import text_of, token_of
from specsplit.clock import SystemClock
from specsplit.generation.delivery import Delivery
from specsplit.membership import Register
from specsplit.observe import Tracing
from specsplit.rpc import Phase, Server
from specsplit.rpc.coordinators import Coordinators
from specsplit.rpc.edge import Edge
from specsplit.rpc.memberships import Memberships
from specsplit.rpc.options import server_options
from specsplit.sessions import DecodeRequest, Tokens
from specsplit.settings import TransportSettings, VerifierSettings
from specsplit.text.vocabulary import vocabulary_of
from specsplit.v1 import verifier_pb2_grpc
from specsplit.values import Load, ModelInfo, SpeculationStatistics
from specsplit.vllm_engine.servicer import VllmEngineServicer
from specsplit_verifier.edge.engine import VerifierEngine
from specsplit_verifier.edge.service import read_revision
from specsplit_verifier.edge.servicer import VerifierServicer
from specsplit_verifier.edge.sessions import Sessions
from specsplit_verifier.edge.updates import Updates
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.events import Cancel, Constrained
from specsplit_verifier.report.telemetry import Telemetry

CONTEXT: Final = 100_000
SESSIONS: Final = 4096
_IDLE_S: Final = 0.02


class Paced:
    """Decodes by the clock, without an end: what of `Verifier` its servicer uses."""

    def __init__(self, info: ModelInfo, settings: VerifierSettings) -> None:
        self.info = info
        telemetry = Telemetry(settings, Tracing("verifier", settings.trace_scope), SystemClock())
        self.sessions = Sessions(self._post, telemetry, self)
        self.decode = self.sessions.decode
        self._every_s, self._verifiers = _IDLE_S, 1
        """What the last request asked for; all of one time ask for the same."""
        self._steps: dict[int, int] = {}
        """How many each session has had."""

    async def state(self, request: DecodeRequest) -> None:
        """Hold no output to anything."""

    def _post(self, event: DecodeRequest | Constrained | Cancel) -> None:
        if isinstance(event, DecodeRequest):
            self._every_s, self._verifiers = pace.asked(text_of(event.tokens[-pace.PROMPT :]))
            self._steps[event.session] = 0
        elif isinstance(event, Cancel):
            del self._steps[event.session]

    def load(self) -> Load:
        """Tell nothing."""
        return Load()

    async def run(self) -> None:
        """Step when it is due, for the sessions of the verifier whose turn it is; steps that it is too late for are not made."""
        while True:
            every_s = self._every_s
            number = pace.step(every_s) + 1
            await asyncio.sleep(pace.wait_s(number, every_s))
            token = (token_of(number),)
            due = number % self._verifiers
            for session, steps in self._steps.items():
                if session % self._verifiers != due:
                    continue
                self._steps[session] = steps + 1
                self.sessions.tell(session, Tokens(token, 0, SpeculationStatistics(steps + 1, 0, 0, 0, steps + 1)))


def _engine_edge(settings: VerifierSettings, paced: Paced) -> VllmEngineServicer:
    """What a gateway asks."""
    engine = VerifierEngine(settings, cast("Server", SimpleNamespace(phase=Phase.SERVING)))
    engine.verifier = cast("Verifier", paced)
    delivery = Delivery(engine, max_unread_bytes=settings.max_unread_bytes, unread_s=settings.unread_s)
    return VllmEngineServicer(delivery, engine, settings.model, SystemClock(), settings.max_message_bytes)


async def _main(coordinator: str, model: Path) -> None:
    logging.disable(logging.INFO)
    settings = VerifierSettings(model=model, max_sessions=SESSIONS, prefix_cache=False)
    paced = Paced(ModelInfo("paced", vocabulary_of(model), CONTEXT, (0,)), settings)
    servicer = VerifierServicer(Updates(settings, partial(read_revision, settings)), lambda method: None)
    servicer.verifier = cast("Verifier", paced)
    server = grpc.aio.server(
        options=server_options(TransportSettings()), interceptors=[Edge("verifier", lambda method: None)]
    )
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server)
    _engine_edge(settings, paced).add_to(server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    membership = Memberships(Coordinators(coordinator), Register("paced", address, paced.info, SESSIONS), Load)
    joined = asyncio.create_task(membership.run())
    await membership.wait_joined()
    print(address, flush=True)
    await asyncio.gather(joined, paced.run())


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2])))
