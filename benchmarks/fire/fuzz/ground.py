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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.fire.fire import EVERYBODY, Fire
from benchmarks.fire.logs import Logs
from benchmarks.ports import free_ports
from specsplit.cli.local import Child
from specsplit.cli.tokens import FOLDERS, TOKENS, write
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
    children: Mapping[str, Child] = field(default_factory=dict[str, Child])
    """The processes by name."""

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


@contextmanager
def ground(fire: Fire, logs: Logs) -> Iterator[Ground]:
    """The ground; fewer of its processes in a short run. To be entered outside of an event loop; at its end they are told to leave.

    Raises SystemExit if the run was told to end.
    """
    children: dict[str, Child] = {}
    try:
        with fire.ending.starting():
            found = _started(fire, logs, children)
        yield found
        logs.look(children.values())
        _stop(list(children.values()))
        logs.left(children.values())
    finally:
        for child in children.values():
            child.kill()


def _started(fire: Fire, logs: Logs, children: dict[str, Child]) -> Ground:
    """Start everyone; members come when coordinators listen."""
    models, secrets, free = fire.context.models, fire.folder / "fuzz" / "secrets", free_ports(2)
    target, members, hostile = models / "target", f"127.0.0.1:{free}", f"127.0.0.1:{free + 1}"
    write(secrets, ROLES)

    def start(name: str, service: str, settings: Mapping[str, object], **more: object) -> None:
        shown = {"tokens_file": secrets / TOKENS, "token_file": _token_of(secrets, "member")}
        named = {} if service == "coordinator" else {"member_id": name}
        options = {"listen": "127.0.0.1:0", **EVERYBODY, **shown, **named, **settings, **more}
        children[name] = Child(name, service, options, logs.hear)

    start("coordinator", "coordinator", _COORDINATOR, model=target, members_listen=members)
    start("lone", "coordinator", _LONE, model=target)
    for child in children.values():
        child.wait_listening(_START_S)
    start("verifier", "verifier", _VERIFIER, model=target, coordinator=members)
    start("ngram", "drafter", _DRAFTER, kind="ngram", coordinator=members)
    start("stray", "drafter", _DRAFTER, kind="ngram", coordinator=hostile)
    if not fire.context.quick:
        start("eagle3", "drafter", _DRAFTER, coordinator=members, kind="eagle3", model=models / "eagle3", target=target)
        start("stray-verifier", "verifier", _VERIFIER, model=target, coordinator=hostile)
    for child in children.values():
        child.wait_listening(_START_S)
    drafters = [children[name].address for name in ("ngram", "eagle3") if name in children]
    metrics = [url.split("/")[2] for name in children if (url := logs.metrics(name))]
    public, lone, verifier = (children[name].address for name in ("coordinator", "lone", "verifier"))
    return Ground(public, members, verifier, drafters, lone, hostile, metrics, secrets, children)


def _stop(children: Sequence[Child]) -> None:
    """Tell everyone to leave, coordinators first."""
    for some in (children[:2], children[2:]):
        for child in some:
            child.terminate()
        until = time.monotonic() + _STOP_S
        for child in some:
            child.wait(max(0.0, until - time.monotonic()))
