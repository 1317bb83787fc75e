"""What each method asks of its caller, in one table. A method that stands in no row is refused."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from specsplit.errors import PermissionDenied
from specsplit.identity import CallerRole, Identity
from specsplit.rpc.names import (
    CLUSTER_SERVICE,
    COORDINATOR_SERVICE,
    DRAFTER_SERVICE,
    VERIFIER_SERVICE,
    VLLM_ENGINE_SERVICE,
)

_CLIENT, _MEMBER, _OPERATOR = CallerRole.CLIENT, CallerRole.MEMBER, CallerRole.OPERATOR
_HEALTH = "grpc.health.v1.Health"
_REFLECTION = "grpc.reflection.v1alpha.ServerReflection"

PERMISSIONS: Mapping[str, frozenset[CallerRole] | None] = MappingProxyType(
    {
        f"/{COORDINATOR_SERVICE}/Generate": frozenset({_CLIENT}),
        f"/{COORDINATOR_SERVICE}/GetModelInfo": frozenset({_CLIENT, _OPERATOR}),
        f"/{COORDINATOR_SERVICE}/GetCluster": frozenset({_CLIENT, _OPERATOR}),
        f"/{COORDINATOR_SERVICE}/GetPlan": frozenset({_CLIENT, _OPERATOR}),
        f"/{COORDINATOR_SERVICE}/GetTracing": frozenset({_CLIENT, _OPERATOR}),
        f"/{COORDINATOR_SERVICE}/SetPlan": frozenset({_OPERATOR}),
        f"/{COORDINATOR_SERVICE}/SetTracing": frozenset({_OPERATOR}),
        f"/{COORDINATOR_SERVICE}/UpdateWeights": frozenset({_OPERATOR}),
        f"/{VLLM_ENGINE_SERVICE}/Generate": frozenset({_CLIENT}),
        f"/{VLLM_ENGINE_SERVICE}/Embed": frozenset({_CLIENT}),
        f"/{VLLM_ENGINE_SERVICE}/Abort": frozenset({_CLIENT}),
        f"/{VLLM_ENGINE_SERVICE}/HealthCheck": frozenset({_CLIENT, _OPERATOR}),
        f"/{VLLM_ENGINE_SERVICE}/GetModelInfo": frozenset({_CLIENT, _OPERATOR}),
        f"/{VLLM_ENGINE_SERVICE}/GetServerInfo": frozenset({_CLIENT, _OPERATOR}),
        f"/{VLLM_ENGINE_SERVICE}/GetLoads": frozenset({_CLIENT, _OPERATOR}),
        f"/{VLLM_ENGINE_SERVICE}/GetTokenizer": frozenset({_CLIENT}),
        f"/{VLLM_ENGINE_SERVICE}/SubscribeKvEvents": frozenset({_CLIENT}),
        f"/{VLLM_ENGINE_SERVICE}/FlushCache": frozenset({_OPERATOR}),
        f"/{VLLM_ENGINE_SERVICE}/StartProfile": frozenset({_OPERATOR}),
        f"/{VLLM_ENGINE_SERVICE}/StopProfile": frozenset({_OPERATOR}),
        f"/{CLUSTER_SERVICE}/Join": frozenset({_MEMBER}),
        f"/{VERIFIER_SERVICE}/Decode": frozenset({_MEMBER}),
        f"/{VERIFIER_SERVICE}/DecodeSessions": frozenset({_MEMBER}),
        f"/{VERIFIER_SERVICE}/Watch": frozenset({_MEMBER}),
        f"/{VERIFIER_SERVICE}/UpdateWeights": frozenset({_MEMBER, _OPERATOR}),
        f"/{DRAFTER_SERVICE}/GetDrafterInfo": frozenset({_MEMBER, _OPERATOR}),
        f"/{DRAFTER_SERVICE}/Draft": frozenset({_MEMBER}),
        f"/{DRAFTER_SERVICE}/UpdateWeights": frozenset({_MEMBER, _OPERATOR}),
        f"/{_HEALTH}/Check": None,
        f"/{_HEALTH}/Watch": None,
        f"/{_HEALTH}/List": None,
        f"/{_REFLECTION}/ServerReflectionInfo": None,
    }
)
"""The roles of which a caller needs one; None: whoever reaches the port may call it."""

AT_VERIFIERS: Mapping[str, frozenset[CallerRole]] = MappingProxyType(
    {
        method: (roles - {_CLIENT}) | {_MEMBER}
        for method, roles in PERMISSIONS.items()
        if roles is not None and method.startswith(f"/{VLLM_ENGINE_SERVICE}/")
    }
)
"""What a verifier asks in the place of that: who sends requests past the coordinator passes its queue and quotas, so members alone do. A
coordinator, which is a member, passes on what operators ask of all verifiers."""


def needed(method: str, process: str = "") -> frozenset[CallerRole] | None:
    """The roles of which the caller of "/service/Method" needs one, none of which he can have if the table has no such row.

    `process`: which kind is called, such as "verifier".
    """
    if process == "verifier" and method in AT_VERIFIERS:
        return AT_VERIFIERS[method]
    return PERMISSIONS.get(method, frozenset())


def check_permitted(
    method: str, wanted: frozenset[CallerRole], identity: Identity, port: frozenset[CallerRole]
) -> None:
    """Raise PermissionDenied unless this caller has one of the roles that this method needs, on a port for callers of these roles."""
    if wanted & identity.roles & port:
        return
    name, role = method.rpartition("/")[2], described(wanted)
    if wanted & identity.roles:
        raise PermissionDenied(f"{name} needs {role}, and this port is for {_listed(port)}s alone; dial members_listen")
    has = f"{identity.name or 'a caller without a token'} is {_listed(identity.roles)}"
    raise PermissionDenied(f"{name} needs {role}, and {has}")


def described(wanted: frozenset[CallerRole]) -> str:
    """Say what is needed: "the role client or operator"."""
    return f"the role {_listed(wanted)}" if wanted else "a role that nobody has"


def _listed(roles: frozenset[CallerRole]) -> str:
    return " or ".join(role for role in CallerRole if role in roles)
