"""A whole cluster on this machine, each service a process of its own; for `up`, `demo`, tests and benchmarks."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from specsplit.cli.drawn_port import DrawnPort
from specsplit.cli.process import Listener, Process, arguments
from specsplit.client import AsyncClient, Client
from specsplit.errors import DeadlineExceeded, PermissionDenied, SpecsplitError, Unauthenticated, Unavailable
from specsplit.settings import TransportSettings
from specsplit.settings.address import from_here
from specsplit.values import DrafterKind

_LISTENING = re.compile(r"specsplit \w+ listening on (\S+)")
_FOR_MEMBERS = re.compile(r"specsplit \w+ listening for members on (\S+)")
_FOR_ADAPTER = re.compile(r"specsplit \w+ listening for adapter (.+) on (\S+)")
_LAST_S = 3.0
"""Time that the coordinator has to leave when the members have used up theirs."""
_SECRET = frozenset({"quota_store"})
"""Settings that may hold a password. Everybody on a machine sees command lines, and a process's environment its owner alone."""


class Child(Process):
    """One service process."""

    def __init__(self, name: str, service: str, options: Mapping[str, object], listener: Listener | None) -> None:
        """Starts it. `options` are settings of the service by name."""
        self._options = options
        self.service = service
        self.address = ""
        """host:port at which this machine reaches it; empty until it listens."""
        self.members_address = _members_address(options) if service == "coordinator" else ""
        """host:port at which members reach it, if it is a coordinator; empty as long as nobody knows its port."""
        self.adapters: dict[str, str] = {}
        """host:port at which gateways reach each adapter, by its name, if it is a coordinator."""
        self._listening = threading.Event()
        shown = arguments({field: value for field, value in options.items() if field not in _SECRET})
        command = [sys.executable, "-m", "specsplit.cli.child", "serve", service, *shown]
        super().__init__(name, command, listener, _hidden(service, options))

    def again(self) -> Child:
        """Start another process as this one was started, which is over; a coordinator at the address that it had."""
        host, port = str(self._options.get("listen")).rpartition(":")[0], self.address.rpartition(":")[2]
        here = {"listen": f"{host}:{port}"} if self.service == "coordinator" and self.address else {}
        return Child(self.name, self.service, {**self._options, **here}, self._listener)

    def wait_listening(self, timeout_s: float) -> str:
        """Wait until it listens -> its address. Raises Unavailable if it ends instead, DeadlineExceeded if it takes too long."""
        deadline = time.monotonic() + timeout_s
        while not self._listening.wait(0.05):
            self.require_alive()
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"{self.name} does not listen after {timeout_s:g} s; its last line: {self.last_line}"
                )
        return self.address

    def heard(self, line: str) -> None:
        """Take in one line of its output, which may say where it listens."""
        if (match := _FOR_MEMBERS.fullmatch(line)) is not None:
            self.members_address = from_here(match[1])
        if (match := _FOR_ADAPTER.fullmatch(line)) is not None:
            self.adapters[match[1]] = from_here(match[2])
        if (match := _LISTENING.fullmatch(line)) is not None and not self.address:
            self.address = from_here(match[1])
            self.members_address = self.members_address or self.address
            self._listening.set()
        super().heard(line)


class LocalCluster:
    """A coordinator, verifiers and drafters. A context manager, sync and async: inside it everyone has joined."""

    def __init__(
        self,
        model: Path,
        draft_models: Path | Mapping[DrafterKind, Path] | Mapping[str, Path] | None = None,
        *,
        verifiers: int = 1,
        drafters: Sequence[DrafterKind | str] = (),
        listen: str = "127.0.0.1:0",
        coordinator: Mapping[str, object] | None = None,
        verifier: Mapping[str, object] | None = None,
        drafter: Mapping[str, object] | None = None,
        transport: TransportSettings | None = None,
        listener: Listener | None = None,
        start_timeout_s: float = 120.0,
        stop_timeout_s: float = 10.0,
    ) -> None:
        """`draft_models` holds the folder of each kind that needs one; one folder alone is the standalone kind's.

        `drafters` names the kind of each; the mappings override settings of every child of that service. `transport` is how clients of
        this cluster speak to its coordinator.
        """
        self.transport = transport
        self._model = model
        self._draft_models = _by_kind(draft_models)
        self._num_verifiers = verifiers
        self._drafter_kinds = [DrafterKind(kind) for kind in drafters]
        self._options: dict[str, dict[str, object]] = {
            "coordinator": {"model": model, "listen": listen, **(coordinator or {})},
            "verifier": {"model": model, **(verifier or {})},
            "drafter": dict(drafter or {}),
        }
        self._listener = listener
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._coordinator: Child | None = None
        self.verifiers: list[Child] = []
        self.drafters: list[Child] = []

    @property
    def coordinator(self) -> Child:
        """The coordinator's process. Raises Unavailable before `start`."""
        if self._coordinator is None:
            raise Unavailable("the local cluster is not started")
        return self._coordinator

    @property
    def address(self) -> str:
        """The coordinator's host:port."""
        return self.coordinator.address

    @property
    def children(self) -> list[Child]:
        """Every process, the coordinator first."""
        first = [] if self._coordinator is None else [self._coordinator]
        return [*first, *self.verifiers, *self.drafters]

    def settings(self, service: str) -> Mapping[str, object]:
        """The settings that every child of this service is started with, by name."""
        return self._options[service]

    @property
    def dead(self) -> list[Child]:
        """Processes that are over."""
        return [child for child in self.children if not child.alive]

    @property
    def down(self) -> bool:
        """True if nothing can be generated any more: the coordinator is over, or every verifier is."""
        return is_down(self.coordinator.alive, [child.alive for child in self.verifiers])

    def client(self) -> Client:
        """Make a client of the coordinator, which the caller closes."""
        return Client(self.address, self.transport)

    def async_client(self) -> AsyncClient:
        """Make a client of the coordinator, which the caller closes."""
        return AsyncClient(self.address, self.transport)

    def start(self) -> None:
        """Start everyone and wait until the coordinator sees them.

        Raises Unavailable if one dies, DeadlineExceeded if it takes too long; nobody is left running then.
        """
        try:
            with closing(self._start_coordinator()) as port:
                if not self.coordinator.members_address:
                    self._coordinator_listens()
                for _ in range(self._num_verifiers):
                    self.spawn_verifier()
                if port.drawn:  # a drafter without a model is ready in a moment, and would warn that nobody listens yet
                    self._coordinator_listens()
                for kind in self._drafter_kinds:
                    self.spawn_drafter(kind)
                self._coordinator_listens()
            self.wait_joined()
        except BaseException:
            self.stop()
            raise

    def spawn_verifier(self, **settings: object) -> Child:
        """Start one more verifier, which joins by itself (`wait_joined`)."""
        name = f"verifier-{len(self.verifiers)}"
        child = self._spawn(name, "verifier", {**self._options["verifier"], **settings})
        self.verifiers.append(child)
        return child

    def spawn_drafter(self, kind: DrafterKind | str, **settings: object) -> Child:
        """One more drafter; it joins by itself (see `wait_joined`). Raises Unavailable if its kind needs a model and there is none."""
        kind = DrafterKind(kind)
        options = {**self._options_of(kind), **self._options["drafter"], **settings}
        if kind.needs_model and options.get("model") is None:
            raise Unavailable(f"a drafter of kind {kind.value} needs a model; name its folder in draft_models")
        name = f"{kind.value}-{len(self.drafters)}"
        child = self._spawn(name, "drafter", options)
        self.drafters.append(child)
        return child

    def revive(self, child: Child) -> Child:
        """Start another process in the place of one that is over, under the same name; a member joins by itself (`wait_joined`)."""
        again = child.again()
        if child is self._coordinator:
            self._coordinator = again
        for members in (self.verifiers, self.drafters):
            members[:] = [again if each is child else each for each in members]
        return again

    def wait_joined(self) -> None:
        """Return once the coordinator sees every member that was not told to end. Raises as `start`."""
        deadline = time.monotonic() + self._start_timeout_s
        with self.client() as client:
            while missing := self._missing(client):
                for child in self.children:
                    if child in missing or child is self.coordinator:
                        child.require_alive()
                if time.monotonic() > deadline:
                    said = "; ".join(f"the last line of {each.name}: {each.last_line}" for each in missing)
                    names = ", ".join(each.name for each in missing)
                    raise DeadlineExceeded(f"{names} did not join within {self._start_timeout_s:g} s; {said}")
                time.sleep(0.05)

    def stop(self) -> None:
        """SIGTERM to the members, which leave in order, then to the coordinator; SIGKILL to who is still there after `stop_timeout_s`."""
        try:
            deadline = time.monotonic() + self._stop_timeout_s
            _end([*self.verifiers, *self.drafters], deadline)
            # Requests for which members had no time are not waited for a second time.
            _end(self.children[:1], max(deadline, time.monotonic() + _LAST_S))
        except BaseException:  # Ctrl-C once more: nobody is left behind
            self.kill()
            raise

    def kill(self) -> None:
        """Send SIGKILL to everyone."""
        for child in self.children:
            child.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _start_coordinator(self) -> DrawnPort:
        """Start the coordinator -> the port that was drawn for members, if that was left open: a verifier need not wait for it then."""
        options = self._options["coordinator"]
        field = "members_listen" if options.get("members_listen") else "listen"
        port = DrawnPort(str(options[field]))
        self._coordinator = Child("coordinator", "coordinator", {**options, field: port.listen}, self._listener)
        return port

    def _coordinator_listens(self) -> None:
        self.coordinator.wait_listening(self._start_timeout_s)

    def _options_of(self, kind: DrafterKind) -> dict[str, object]:
        """List the options that make a drafter one of this kind."""
        target = self._model if kind.is_head else None
        return {"kind": kind.value, "model": self._draft_models.get(kind), "target": target}

    def _spawn(self, name: str, service: str, options: Mapping[str, object]) -> Child:
        options = {"coordinator": self.coordinator.members_address, "member_id": name, **options}
        return Child(name, service, options, self._listener)

    def _missing(self, client: Client) -> list[Child]:
        """Who has not joined. Raises Unauthenticated or PermissionDenied if the coordinator tells this client nothing."""
        expected = [child for child in self.children[1:] if not child.dismissed]
        try:
            there = {member.member_id for member in client.cluster(timeout_s=5).members}
        except (Unauthenticated, PermissionDenied):
            raise
        except SpecsplitError:
            there = set[str]()
        return [child for child in expected if child.name not in there]


def _hidden(service: str, options: Mapping[str, object]) -> dict[str, str]:
    """The environment that hands a service the settings that its command line does not show."""
    given = {field: options[field] for field in _SECRET if options.get(field) is not None}
    return {f"SPECSPLIT_{service}_{field}".upper(): str(value) for field, value in given.items()}


def _members_address(options: Mapping[str, object]) -> str:
    """Where members reach a coordinator with these settings, which they try until it listens; empty if its port is any free one."""
    listen = str(options.get("members_listen") or options.get("listen") or ":0")
    return "" if listen.endswith(":0") else from_here(listen)


def _end(children: Sequence[Child], deadline: float) -> None:
    """SIGTERM to all, and SIGKILL to who is still there at `deadline`."""
    for child in children:
        child.terminate()
    for child in children:
        if child.wait(max(0.0, deadline - time.monotonic())) is None:
            child.kill()


def is_down(coordinator: bool, verifiers: Sequence[bool]) -> bool:
    """True if the coordinator is not alive, or there are verifiers and none of them is."""
    return not coordinator or (len(verifiers) > 0 and not any(verifiers))


def _by_kind(
    draft_models: Path | Mapping[DrafterKind, Path] | Mapping[str, Path] | None,
) -> dict[DrafterKind, Path]:
    if draft_models is None:
        return {}
    if isinstance(draft_models, Path):
        return {DrafterKind.STANDALONE: draft_models}
    return {DrafterKind(kind): folder for kind, folder in draft_models.items()}
