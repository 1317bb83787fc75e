"""The client for code without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack

import grpc

from specsplit.client.interrupts import undisturbed
from specsplit.client.options import Options, Promptable, check_timeout, make_request, make_whole_request
from specsplit.client.replicas import Replica, Replicas
from specsplit.client.result import Gatherer, Result
from specsplit.client.resuming import Resuming
from specsplit.client.until import Until
from specsplit.engine import MemberUpdated, UpdateWeights
from specsplit.errors import Cancelled, DeadlineExceeded, Unavailable
from specsplit.membership import Cluster, PlanInForce, TracingInForce
from specsplit.observe.tracing import trace_metadata
from specsplit.requests import GenerateEvent, GenerateRequest
from specsplit.rpc import dial_blocking, from_rpc_error, wait_until_serving_blocking
from specsplit.settings import TransportSettings
from specsplit.v1 import coordinator_pb2_grpc
from specsplit.values import Control, DrafterKind, ModelInfo, PlanChanges, TraceChanges
from specsplit.wire import coordinator as wire
from specsplit.wire import weights

_Stub = coordinator_pb2_grpc.CoordinatorServiceStub
_Replica = Replica[grpc.Channel, _Stub]
_Answer = TypeVar("_Answer")
_LOOK_S: Final = 0.2
"""So long one of several coordinators is waited for before the next one is looked at."""


class Client:
    """Talks to a coordinator, or to several that serve one cluster: a call goes to each in turn, and to another if one is gone.

    Every method raises the errors of `specsplit.errors`. Close it, or use it as a context manager. Several threads may use one client.
    """

    def __init__(self, address: str, transport: TransportSettings | None = None) -> None:
        """`address` is host:port, several with commas between, or dns:///name:port for every address of a name.

        Connections are made when first used. Raises InvalidRequest for a bad address or CA file.
        """
        self._replicas = Replicas[grpc.Channel, _Stub](address, partial(dial_blocking, settings=transport), _Stub)
        self._address = address
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
        """Stream the events of a request that is made already.

        If the stream breaks, another coordinator goes on with it, if there is one; else Unavailable has the tokens that had come.
        """
        self._require_open()
        timeout_s = check_timeout(timeout_s)
        resuming, until = Resuming(request, elsewhere=self._replicas.several), Until(timeout_s)
        while True:
            replica = self._replicas.in_turn()[0]
            try:
                yield from self._stream(replica, resuming, until)
                return
            except Unavailable as error:
                self._replicas.failed(replica)
                pause_s = resuming.after(error)
            time.sleep(until.at_most(pause_s))

    def _stream(self, replica: _Replica, resuming: Resuming, until: Until) -> Generator[GenerateEvent, None, None]:
        """Stream what has not come yet, from this coordinator."""
        self._require_open()
        message = wire.generate_to_wire(resuming.rest)
        with self._typed_failures(replica), undisturbed():
            call = replica.stub.Generate(message, timeout=until.left_s, metadata=trace_metadata())
        try:
            with self._typed_failures(replica):
                for message in call:
                    for event in wire.generate_events(message):
                        yield resuming.add(event)
            resuming.check_whole()
        finally:
            call.cancel()

    def model_info(self, timeout_s: float | None = None) -> ModelInfo:
        """Ask which target model the cluster serves."""
        timeout_s = check_timeout(timeout_s)
        request = wire.model_info_request()
        return wire.model_info_from_wire(self._ask(lambda stub: stub.GetModelInfo(request, timeout=timeout_s)))

    def cluster(self, timeout_s: float | None = None) -> Cluster:
        """Ask who is in the cluster and how busy each member is."""
        timeout_s = check_timeout(timeout_s)
        request = wire.cluster_request()
        return wire.cluster_from_wire(self._ask(lambda stub: stub.GetCluster(request, timeout=timeout_s)))

    def plan(self, timeout_s: float | None = None) -> PlanInForce:
        """Ask which changes of the plan are in force. A coordinator of an older build does not know the call: Unsupported."""
        timeout_s = check_timeout(timeout_s)
        request = wire.plan_request()
        return wire.plan_in_force_from_wire(self._ask(lambda stub: stub.GetPlan(request, timeout=timeout_s)))

    def tracing(self, timeout_s: float | None = None) -> TracingInForce:
        """Ask which changes of what is traced are in force. A coordinator of an older build does not know the call: Unsupported."""
        timeout_s = check_timeout(timeout_s)
        request = wire.tracing_request()
        return wire.tracing_in_force_from_wire(self._ask(lambda stub: stub.GetTracing(request, timeout=timeout_s)))

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
        timeout_s = check_timeout(timeout_s)
        request = wire.set_plan_to_wire(changes or PlanChanges(), control or Control(), reset)
        return wire.plan_in_force_from_wire(self._tell(lambda stub: stub.SetPlan(request, timeout=timeout_s)))

    def set_tracing(
        self, changes: TraceChanges | None = None, *, reset: bool = False, timeout_s: float | None = None
    ) -> TracingInForce:
        """Change what every service traces, on top of earlier changes or, with `reset`, instead of them; what is in force now."""
        timeout_s = check_timeout(timeout_s)
        request = wire.set_tracing_to_wire(changes or TraceChanges(), reset)
        return wire.tracing_in_force_from_wire(self._tell(lambda stub: stub.SetTracing(request, timeout=timeout_s)))

    def update_weights(
        self,
        wanted: UpdateWeights,
        member_id: str = "",
        timeout_s: float | None = None,
        *,
        drafters: DrafterKind | None = None,
    ) -> tuple[MemberUpdated, ...]:
        """Have one member go on with other weights of its model, or without a `member_id` all verifiers, or all drafters of a kind -> what
        came of it at each, once all are through.

        Raises NotFound for a member or drafters that are not there, Unavailable if no verifier is, InvalidRequest for both at once.
        """
        timeout_s, request = check_timeout(timeout_s), weights.update_to_wire(wanted, member_id, drafters)
        return weights.updated_from_wire(self._order(lambda stub: stub.UpdateWeights(request, timeout=timeout_s)))

    def wait_until_serving(self, timeout_s: float) -> None:
        """Return once a coordinator takes requests. Raises DeadlineExceeded."""
        self._require_open()
        until = Until(check_timeout(timeout_s))
        first, *others = self._replicas
        while others and until.at_most(_LOOK_S):
            for replica in (first, *others):
                with suppress(DeadlineExceeded), self._typed_failures(replica):
                    wait_until_serving_blocking(replica.channel, until.at_most(_LOOK_S))
                    return
        with self._typed_failures(first):
            wait_until_serving_blocking(first.channel, until.at_most(timeout_s))

    def close(self) -> None:
        """Hang up: requests that still run end with Cancelled, later ones with Unavailable."""
        self._closed = True
        for replica in self._replicas:
            replica.channel.close()

    def _ask(self, call: Callable[[_Stub], _Answer]) -> _Answer:
        """Ask one of them. Raises what the last of those that are not there says if none is."""
        *others, last = self._replicas.in_turn()
        for replica in others:
            try:
                return self._ask_one(replica, call)
            except Unavailable:
                self._replicas.failed(replica)
        return self._ask_one(last, call)

    def _tell(self, call: Callable[[_Stub], _Answer]) -> _Answer:
        """Tell all of them -> what the first answers. One that is not there knows nothing when it is back, so it need not be told.

        Raises Unavailable if none is there.
        """
        answers, failure = list[_Answer](), Unavailable("there is no coordinator")
        for replica in self._replicas:
            try:
                answers.append(self._ask_one(replica, call))
            except Unavailable as error:
                failure = error
        if not answers:
            raise failure
        return answers[0]

    def _order(self, call: Callable[[_Stub], _Answer]) -> _Answer:
        """Ask the one whose turn it is, and no other: what is asked for may have been done already when the answer does not come."""
        replica = self._replicas.in_turn()[0]
        try:
            return self._ask_one(replica, call)
        except Unavailable:
            self._replicas.failed(replica)
            raise

    def _ask_one(self, replica: _Replica, call: Callable[[_Stub], _Answer]) -> _Answer:
        self._require_open()
        with self._typed_failures(replica):
            return call(replica.stub)

    def _require_open(self) -> None:
        if self._closed:
            raise Unavailable(f"coordinator {self._address}: this client is closed; make another")

    @contextmanager
    def _typed_failures(self, replica: _Replica) -> Generator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise from_rpc_error(error, replica.peer) from error
        except ValueError as error:
            if not self._closed:
                raise
            # grpc answers so when another thread has closed the channel just before a call.
            raise Cancelled(f"{replica.peer}: this client was closed during the request") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
