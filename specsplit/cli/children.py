"""What `specsplit up` starts its children with, checked before any of them is started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specsplit.cli.calls import check_calls, reaching
from specsplit.cli.drafters import Drafters
from specsplit.cli.handed import Handed
from specsplit.cli.serve import SETTINGS
from specsplit.errors import InvalidRequest
from specsplit.rpc.callers import Callers
from specsplit.rpc.certificates import server_credentials
from specsplit.rpc.channel import check_reachable, check_shown
from specsplit.settings import CoordinatorSettings, MemberSettings, ServiceSettings, TransportSettings
from specsplit.settings.address import from_here, is_loopback, split
from specsplit.values import DrafterKind

Options = Mapping[str, object]
"""Settings of one service by name; None is left out."""


@dataclass(frozen=True)
class Wish:
    """The cluster that is asked for."""

    target: Path
    drafters: Drafters
    listen: str
    web_listen: str
    layers: int
    """What the target is inflated to; 0: it stays as it is."""
    counts: Mapping[str, int]
    """How many there are to be of each service."""


@dataclass(frozen=True)
class Children:
    """What the children are started with, and how the coordinator among them is reached."""

    options: Mapping[str, Options]
    transport: TransportSettings


def children_of(wish: Wish, handed: Handed, transport: TransportSettings) -> Children:
    """Check what was given for the children with what up says to them itself.

    `transport` is what up was given to reach the coordinator with. Raises InvalidRequest with the place of what is wrong.
    """
    _check_wanted(wish, handed)
    own = _own(wish)
    coordinator = _checked("coordinator", handed, {**own["coordinator"], "model": wish.target})
    assert isinstance(coordinator, CoordinatorSettings)
    members = {"listen": f"{_host_of_members(coordinator)}:0"}
    own |= {service: {**own[service], **members} for service in ("verifier", "drafter")}
    checked = {"coordinator": coordinator, **_members(wish, handed, own, _members_port(coordinator))}
    _check_ports(wish, handed, checked)
    check_calls(handed, checked)
    options = {service: {**own[service], **_resolved(service, handed, checked)} for service in SETTINGS}
    return Children(options, reaching(coordinator, checked["verifier"], transport))


def _own(wish: Wish) -> dict[str, Options]:
    """What up itself says to all children of a service, whatever their kind."""
    # A child sees a pipe, whoever reads at its end.
    readable = {"log_format": "text" if sys.stderr.isatty() else "json"}
    return {
        "coordinator": {**readable, "listen": wish.listen, "web_listen": wish.web_listen or None},
        "verifier": {**readable, "inflate_layers": wish.layers},
        "drafter": readable,
    }


def _members(wish: Wish, handed: Handed, own: Mapping[str, Options], coordinator: str) -> dict[str, ServiceSettings]:
    """The settings of verifiers, and of drafters of the last kind if there are any: of all kinds what was given holds."""
    joining = {"coordinator": coordinator}
    checked = {"verifier": _checked("verifier", handed, {**own["verifier"], **joining, "model": wish.target})}
    for kind in dict.fromkeys(wish.drafters.kinds if wish.counts["drafter"] else ()):
        checked["drafter"] = _checked("drafter", handed, {**own["drafter"], **joining, **_drafting(kind, wish)})
    return checked


def _drafting(kind: DrafterKind, wish: Wish) -> Options:
    """The settings that make a drafter one of this kind."""
    return {
        "kind": kind.value,
        "model": wish.drafters.models.get(kind),
        "target": wish.target if kind.is_head else None,
    }


def _resolved(service: str, handed: Handed, checked: Mapping[str, ServiceSettings]) -> Options:
    """What was given for a service, as its settings understand it."""
    if service not in checked:
        return {}
    resolved = checked[service].resolved()
    return {name: resolved[name] for name in handed.values(service)}


def _checked(service: str, handed: Handed, own: Options) -> ServiceSettings:
    """The settings of a child, with what the environment says of them, and the files that they name."""
    given = {name: value for name, value in {**own, **handed.values(service)}.items() if value is not None}
    try:
        settings = SETTINGS[service].load(None, **given)
        check_shown(settings)
        server_credentials(settings)
        Callers(settings)
        if isinstance(settings, MemberSettings):
            check_reachable("coordinator", settings.coordinator, settings)
    except InvalidRequest as error:
        raise handed.blamed(service, error) from error
    return settings


def _host_of_members(coordinator: CoordinatorSettings) -> str:
    """Members listen under the name that certificates have to prove, and where there are none at the loopback."""
    host = from_here(coordinator.listen).rpartition(":")[0]
    return host if coordinator.secured or is_loopback(split("listen", f"{host}:0")[0]) else "127.0.0.1"


def _members_port(coordinator: CoordinatorSettings) -> str:
    """Where members find the coordinator; port 1 stands for one that is not known yet."""
    host, _, port = from_here(coordinator.members_listen or coordinator.listen).rpartition(":")
    return f"{host}:{port if int(port) else 1}"


def _check_wanted(wish: Wish, handed: Handed) -> None:
    """Raise InvalidRequest for a setting of a service of which there is to be none."""
    for each in handed.settings:
        if not wish.counts[each.service]:
            raise InvalidRequest(each.place, f"there is no {each.service} to give it to; leave it out, or ask for one")


def _check_ports(wish: Wish, handed: Handed, checked: Mapping[str, ServiceSettings]) -> None:
    """Raise InvalidRequest for a port that several children would listen at."""
    for service, settings in checked.items():
        listen, count = settings.metrics_listen, wish.counts[service]
        if count > 1 and listen and split("metrics_listen", listen)[1]:
            place = handed.place(service, "metrics_listen")
            raise InvalidRequest(
                place, f"is {listen}, one port, and there are {count} of this service; say port 0 for any free one each"
            )
