"""The coordinator as an engine, for gateways that speak the engine protocol (`specsplit.vllm_engine`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Final

from specsplit.engine import BlockBatch, EngineLoad, FlushCache, Operation, Outcome, engine_load
from specsplit.errors import SpecsplitError, Unavailable, Unsupported, shortened
from specsplit.membership import Cluster
from specsplit.observe import fields
from specsplit.rpc import Phase, Server, caller
from specsplit.values import ModelInfo
from specsplit.wire.limits import MAX_SENTENCE
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.members.verifier_client import VerifierClient

_log = logging.getLogger(__name__)
ANSWERED_S: Final = 120.0
"""Time that a verifier has for what an operator asks for: it writes profiles meanwhile."""


class CoordinatorEngine:
    """A cluster that answers as one engine."""

    def __init__(
        self,
        registry: Registry,
        verifiers: VerifierClient,
        cluster: Callable[[], Cluster],
        server: Server,
        adapter: str = "",
    ) -> None:
        """`adapter` is what requests are decoded with, and its name the model's; empty: the target as it is."""
        self._registry = registry
        self._verifiers = verifiers
        self._cluster = cluster
        self._server = server
        self._adapter = adapter

    def with_adapter(self, name: str) -> CoordinatorEngine:
        """Make an engine of the same cluster whose model is the target with this adapter."""
        return CoordinatorEngine(self._registry, self._verifiers, self._cluster, self._server, name)

    def model(self) -> ModelInfo:
        """What the verifiers serve. Raises Unavailable if there is none, or none has the adapter yet."""
        model = self._registry.model()
        if not self._adapter:
            return model
        if self._adapter not in (each.name for each in model.adapters):
            raise Unavailable(f"no verifier that is there has adapter {self._adapter}; try again when one has joined")
        return replace(self._registry.model(self._adapter), model=self._adapter)

    def load(self) -> EngineLoad:
        """The load of all verifiers together, and of the queue."""
        cluster = self._cluster()
        return engine_load(cluster.members, cluster.running, cluster.queued)

    def problem(self) -> str:
        """Why no requests are taken, in a sentence; empty if they are.

        Raises Unavailable before a verifier has joined. A gateway that gets an answer asks once what the model is called, and never again.
        """
        if self._server.phase is not Phase.SERVING:
            return "the coordinator is draining and takes no new requests"
        self.model()
        return ""

    async def operate(self, operation: Operation) -> Outcome:
        """Have every verifier do what an operator asks for, all at once; the sentence says what each of them answers.

        Raises what the first of them raises if none does it, Unavailable if there is none.
        """
        verifiers = self._registry.verifiers
        if not verifiers:
            self._registry.model()  # says so if none was ever there
            raise Unavailable("every verifier of the cluster is away; try again when one is back")
        timeout_s = ANSWERED_S + (operation.timeout_s if isinstance(operation, FlushCache) else 0.0)
        calls = [self._verifiers.operate(verifier, operation, timeout_s) for verifier in verifiers]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        refusals = [answer for answer in answers if isinstance(answer, SpecsplitError)]
        if len(refusals) == len(answers):
            raise refusals[0]
        said: list[str] = []
        for verifier, answer in zip(verifiers, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, SpecsplitError):
                raise answer
            said.append(f"{verifier.member_id}: {answer.message if isinstance(answer, Outcome) else answer}")
        _log.info("an operator's call", extra=fields(call=type(operation).__name__, by=caller().name, said=said))
        done = all(isinstance(answer, Outcome) and answer.done for answer in answers)
        return Outcome(done, shortened("; ".join(said), MAX_SENTENCE))

    async def block_events(self) -> AsyncGenerator[BlockBatch, None]:
        """Refuse: a gateway that chose a verifier by that would work against the coordinator, which does. Raises Unsupported."""
        raise Unsupported("SubscribeKvEvents", "is not supported: requests are placed by cached prefixes here already")
        yield  # pyright: ignore[reportUnreachable] (so that it is a generator)
