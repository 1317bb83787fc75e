"""The client for code without an event loop."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Self, Unpack

import grpc

from specsplit.client.interrupts import undisturbed
from specsplit.client.options import Options, Promptable, check_timeout, make_request, make_whole_request
from specsplit.client.received import Received
from specsplit.client.result import Gatherer, Result
from specsplit.engine import MemberUpdated, UpdateWeights
from specsplit.errors import Cancelled, Unavailable
from specsplit.membership import Cluster, PlanInForce, TracingInForce
from specsplit.observe.tracing import trace_metadata
from specsplit.requests import GenerateEvent, GenerateRequest
from specsplit.rpc import dial_blocking, from_rpc_error, wait_until_serving_blocking
from specsplit.settings import TransportSettings
from specsplit.v1 import coordinator_pb2_grpc
from specsplit.values import Control, ModelInfo, PlanChanges, TraceChanges
from specsplit.wire import coordinator as wire
from specsplit.wire import weights


class Client:
    """Talks to one coordinator. Every method raises the errors of `specsplit.errors`. Close it, or use it as a context manager.

    One client may be used by several threads.
    """

    def __init__(self, address: str, transport: TransportSettings | None = None) -> None:
        """`address` is host:port; the connection is made when first used. Raises InvalidRequest for a bad address or CA file."""
        self._peer = f"coordinator {address}"
        self._channel = dial_blocking(address, transport)
        self._stub = coordinator_pb2_grpc.CoordinatorServiceStub(self._channel)
        self._closed = False

    def generate(self, prompt: Promptable, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Result:
        """Generate, and return the whole result."""
        request = make_whole_request(prompt, **options)
        gatherer = Gatherer(request.n)
        with closing(self.send(request, timeout_s)) as events:
            for event in events:
                gatherer.add(event)
        return gatherer.result()

    def stream(
        self, prompt: Promptable, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Generator[GenerateEvent, None, None]:
        """Generate, and yield deltas as they come, then one Done; of several choices mixed. Closing the generator ends the request."""
        return self.send(make_request(prompt, **options), timeout_s)

    def send(self, request: GenerateRequest, timeout_s: float | None = None) -> Generator[GenerateEvent, None, None]:
        """Stream the events of a request that is made already. If the stream breaks, Unavailable has the tokens that had come."""
        self._require_open()
        received = Received(request)
        message = wire.generate_to_wire(request)
        with self._typed_failures(), undisturbed():
            call = self._stub.Generate(message, timeout=check_timeout(timeout_s), metadata=trace_metadata())
        try:
            with self._typed_failures():
                for message in call:
                    for event in wire.generate_events(message):
                        received.add(event)
                        yield event
        except Unavailable as error:
            broken = received.broken(error)
            if broken is error:
                raise
            raise broken from error
        else:
            received.check_whole()
        finally:
            call.cancel()

    def model_info(self, timeout_s: float | None = None) -> ModelInfo:
        """Ask which target model the cluster serves."""
        self._require_open()
        timeout_s = check_timeout(timeout_s)
        with self._typed_failures():
            return wire.model_info_from_wire(self._stub.GetModelInfo(wire.model_info_request(), timeout=timeout_s))

    def cluster(self, timeout_s: float | None = None) -> Cluster:
        """Ask who is in the cluster and how busy each member is."""
        self._require_open()
        timeout_s = check_timeout(timeout_s)
        with self._typed_failures():
            return wire.cluster_from_wire(self._stub.GetCluster(wire.cluster_request(), timeout=timeout_s))

    def plan(self, timeout_s: float | None = None) -> PlanInForce:
        """Ask which changes of the plan are in force. A coordinator of an older build does not know the call: Unsupported."""
        self._require_open()
        timeout_s = check_timeout(timeout_s)
        with self._typed_failures():
            return wire.plan_in_force_from_wire(self._stub.GetPlan(wire.plan_request(), timeout=timeout_s))

    def tracing(self, timeout_s: float | None = None) -> TracingInForce:
        """Ask which changes of what is traced are in force. A coordinator of an older build does not know the call: Unsupported."""
        self._require_open()
        timeout_s = check_timeout(timeout_s)
        with self._typed_failures():
            return wire.tracing_in_force_from_wire(self._stub.GetTracing(wire.tracing_request(), timeout=timeout_s))

    def set_plan(
        self,
        changes: PlanChanges | None = None,
        control: Control | None = None,
        *,
        reset: bool = False,
        timeout_s: float | None = None,
    ) -> PlanInForce:
        """Change the default plan of every verifier, and who decides what it does not say; returns all that is changed now.

        That is on top of earlier changes or, with `reset`, instead of them. Raises Incompatible if a verifier does not know the controller.
        """
        self._require_open()
        request = wire.set_plan_to_wire(changes or PlanChanges(), control or Control(), reset)
        with self._typed_failures():
            return wire.plan_in_force_from_wire(self._stub.SetPlan(request, timeout=check_timeout(timeout_s)))

    def set_tracing(
        self, changes: TraceChanges | None = None, *, reset: bool = False, timeout_s: float | None = None
    ) -> TracingInForce:
        """Change what every service traces, on top of earlier changes or, with `reset`, instead of them; what is in force now."""
        self._require_open()
        request = wire.set_tracing_to_wire(changes or TraceChanges(), reset)
        with self._typed_failures():
            return wire.tracing_in_force_from_wire(self._stub.SetTracing(request, timeout=check_timeout(timeout_s)))

    def update_weights(
        self, wanted: UpdateWeights, member_id: str = "", timeout_s: float | None = None
    ) -> tuple[MemberUpdated, ...]:
        """Have one verifier, or all of them, go on with other weights of the target -> what came of it at each, once all are through.

        Raises NotFound for a verifier that is not there, Unavailable if none is.
        """
        self._require_open()
        request = weights.update_to_wire(wanted, member_id)
        with self._typed_failures():
            call = self._stub.UpdateWeights(request, timeout=check_timeout(timeout_s))
            return weights.updated_from_wire(call)

    def wait_until_serving(self, timeout_s: float) -> None:
        """Return once the coordinator takes requests. Raises DeadlineExceeded."""
        self._require_open()
        check_timeout(timeout_s)
        with self._typed_failures():
            wait_until_serving_blocking(self._channel, timeout_s)

    def close(self) -> None:
        """Hang up: requests that still run end with Cancelled, later ones with Unavailable."""
        self._closed = True
        self._channel.close()

    def _require_open(self) -> None:
        if self._closed:
            raise Unavailable(f"{self._peer}: this client is closed; make another")

    @contextmanager
    def _typed_failures(self) -> Generator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._peer) from error
        except ValueError as error:
            if not self._closed:
                raise
            # grpc answers so when another thread has closed the channel just before a call.
            raise Cancelled(f"{self._peer}: this client was closed during the request") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
