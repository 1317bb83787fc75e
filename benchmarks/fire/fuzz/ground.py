"""The processes that are fuzzed, and what it takes to reach them.

Two clusters. One is honest: coordinator, verifier, drafters; an honest client asks it all the while, and clients, members and
operators of no good will call every port of it. The other has a coordinator alone, which hostile verifiers join: a verifier is trusted
with the text, so requests there need only end. A drafter, and in a long run a verifier, are members of no cluster but of a hostile
coordinator's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.fire.fire import EVERYBODY, Fire
from benchmarks.fire.logs import Logs
from benchmarks.ports import free_ports
from specsplit.cli.local import Child
from specsplit.cli.tokens import FOLDERS, TOKENS, write
from specsplit.client import Client
from specsplit.errors import DeadlineExceeded, SpecsplitError
from specsplit.identity import CallerRole
from specsplit.settings import TransportSettings

ROLES: Final[Mapping[str, CallerRole]] = {
    "honest": CallerRole.CLIENT, "client": CallerRole.CLIENT, "member": CallerRole.MEMBER, "operator": CallerRole.OPERATOR,
}  # fmt: skip
"""The hostile client's name is its role, as those of the others are."""
_START_S: Final = 120.0
_STOP_S: Final = 30.0
_COORDINATOR: Final[Mapping[str, object]] = {"drain_s": 2.0, "heartbeat_ms": 200, "max_queue": 256}
_LONE: Final[Mapping[str, object]] = {**_COORDINATOR, "failover_s": 0.3}
_VERIFIER: Final[Mapping[str, object]] = {
    "drain_s": 2.0, "drafter_lost_after_s": 1.0, "drafter_connect_timeout_s": 1.0, "kv_tokens": 32_768, "max_sessions": 64,
}  # fmt: skip
_DRAFTER: Final[Mapping[str, object]] = {"drain_s": 2.0}


@dataclass(frozen=True)
class Ground:
    """Addresses, each host:port, and tokens."""

    public: str
    """The address of the honest coordinator, for clients."""
    members: str
    """The address of the honest coordinator, for members and operators."""
    verifier: str
    drafters: Sequence[str]
    lone: str
    """The address of the coordinator that has hostile verifiers alone."""
    hostile: str
    """The address at which a hostile coordinator is to be, since members look for it there."""
    metrics: Sequence[str]
    """Ports that speak plain HTTP."""
    secrets: Path
    """The folder of the tokens."""

    def transport(self, name: str) -> TransportSettings:
        """What the one of this name in `ROLES` dials with."""
        return TransportSettings(token_file=_token_of(self.secrets, name))

    def shown(self, name: str) -> tuple[tuple[str, str], ...]:
        """The token of the caller of this name, as metadata of a call."""
        token = _token_of(self.secrets, name).read_text(encoding="utf-8").strip()
        return (("authorization", f"Bearer {token}"),)


def _token_of(secrets: Path, name: str) -> Path:
    """The file of the one of this name in `ROLES`."""
    return secrets / FOLDERS[ROLES[name]] / f"{name}.token"


class _Processes:
    def __init__(self, fire: Fire, logs: Logs) -> None:
        self.started: dict[str, Child] = {}
        self.secrets = fire.folder / "fuzz" / "secrets"
        write(self.secrets, ROLES)
        self._models = fire.context.models
        self._logs = logs
        self.members = f"127.0.0.1:{free_ports(2)}"
        self.hostile = f"127.0.0.1:{int(self.members.rpartition(':')[2]) + 1}"

    def start(self, *, long: bool) -> None:
        """Start everyone; members come when coordinators listen."""
        target = self._models / "target"
        self._start("coordinator", "coordinator", _COORDINATOR, model=target, members_listen=self.members)
        self._start("lone", "coordinator", _LONE, model=target)
        for name in ("coordinator", "lone"):
            self.started[name].wait_listening(_START_S)
        self._start("verifier", "verifier", _VERIFIER, model=target, coordinator=self.members)
        self._start("ngram", "drafter", _DRAFTER, kind="ngram", coordinator=self.members)
        self._start("stray", "drafter", _DRAFTER, kind="ngram", coordinator=self.hostile)
        if long:
            head = {"kind": "eagle3", "model": self._models / "eagle3", "target": target}
            self._start("eagle3", "drafter", _DRAFTER, coordinator=self.members, **head)
            self._start("stray-verifier", "verifier", _VERIFIER, model=target, coordinator=self.hostile)
        for child in self.started.values():
            child.wait_listening(_START_S)

    def _start(self, name: str, service: str, settings: Mapping[str, object], **more: object) -> None:
        shown = {"tokens_file": self.secrets / TOKENS, "token_file": _token_of(self.secrets, "member")}
        named = {} if service == "coordinator" else {"member_id": name}
        options = {"listen": "127.0.0.1:0", **EVERYBODY, **shown, **named, **settings, **more}
        self.started[name] = Child(name, service, options, self._logs.hear)

    def ground(self) -> Ground:
        """Where everybody is."""
        metrics = [url.split("/")[2] for name in self.started if (url := self._logs.metrics(name))]
        drafters = [self.started[name].address for name in ("ngram", "eagle3") if name in self.started]
        return Ground(
            self.started["coordinator"].address, self.members, self.started["verifier"].address, drafters,
            self.started["lone"].address, self.hostile, metrics, self.secrets,
        )  # fmt: skip

    def wait_joined(self, ground: Ground) -> None:
        """Return once the honest members are in their cluster."""
        expected, until = 1 + len(ground.drafters), time.monotonic() + _START_S
        with Client(ground.public, ground.transport("honest")) as client:
            while _members(client) < expected:
                for child in self.started.values():
                    child.require_alive()
                if time.monotonic() > until:
                    raise DeadlineExceeded(f"not all of {expected} members joined within {_START_S:g} s")
                time.sleep(0.1)

    def stop(self) -> None:
        """Tell everyone to leave, coordinators first."""
        children = [*self.started.values()]
        for some in (children[:2], children[2:]):
            for child in some:
                child.terminate()
            until = time.monotonic() + _STOP_S
            for child in some:
                child.wait(max(0.0, until - time.monotonic()))


def _members(client: Client) -> int:
    try:
        return len(client.cluster(timeout_s=5).members)
    except SpecsplitError:
        return 0


@contextmanager
def ground(fire: Fire, logs: Logs, *, long: bool) -> Iterator[tuple[Ground, Mapping[str, Child]]]:
    """The ground, and its processes by name. To be entered outside of an event loop; at the end everybody is told to leave.

    Raises SystemExit if the run was told to end.
    """
    processes = _Processes(fire, logs)
    try:
        with fire.ending.starting():
            processes.start(long=long)
            found = processes.ground()
            processes.wait_joined(found)
        yield found, processes.started
        logs.look(processes.started.values())
        processes.stop()
        logs.left(processes.started.values())
    finally:
        for child in processes.started.values():
            child.kill()
