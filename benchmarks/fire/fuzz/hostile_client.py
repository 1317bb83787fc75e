"""A hostile caller of every RPC: unknown, with somebody else's role, or with the role that it takes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from benchmarks.fire.fuzz.calls import HEALTH, LISTENS_S, REFLECTION, Manner, Method, call, methods_of
from benchmarks.fire.fuzz.case import Case
from benchmarks.fire.fuzz.scene import Scene, Spite
from benchmarks.fire.fuzz.servers import UNBOUNDED
from specsplit.identity import CallerRole
from specsplit.rpc import CLUSTER_SERVICE, COORDINATOR_SERVICE, DRAFTER_SERVICE, VERIFIER_SERVICE
from specsplit.rpc.permissions import needed
from specsplit.v1.cluster_pb2 import JoinRequest

_WEIGHTS: Final = {
    "Generate": 4,
    "Join": 4,
    "Decode": 4,
    "Draft": 6,
    "Check": 0.3,
    "List": 0.3,
    "ServerReflectionInfo": 0.5,
}
"""How often a method is called, where that is not once."""
_BIDI: Final = {"Draft": 120, "Join": 40}
"""Messages of a stream, at most as a rule."""
_STRANGE: Final = (
    ("authorization", "Bearer "), ("authorization", "Basic eA=="), ("traceparent", "00-00-00-00"), ("traceparent", "x" * 5_000),
    ("grpc-encoding-x", "y"),
)  # fmt: skip
_NEVER_THERE: Final = (
    "/specsplit.v1.CoordinatorService/Nothing",
    "/nowhere.Service/Method",
    "/specsplit.v1.VerifierService/",
)
_ENDING: Final = frozenset({"CoordinatorService.Generate", "VerifierService.Decode"})
"""Methods that stream their answers and come to an end, so that some callers wait for it."""
_PATIENT: Final = 0.15
"""Share of the calls of these methods whose callers wait for the end."""
_CUT_S: Final = 0.25
_LONGER_S: Final = 2.0
_SHORT_S: Final = (0.001, 0.02)


@dataclass(frozen=True, slots=True)
class _Victim:
    """One port and what may be called there."""

    address: str
    methods: Sequence[Method]


class HostileClient:
    """Calls one RPC of one port in every case."""

    name = "client"

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        ground, common = scene.ground, methods_of(HEALTH, REFLECTION)
        coordinators = methods_of(COORDINATOR_SERVICE, CLUSTER_SERVICE) + common
        drafters = methods_of(DRAFTER_SERVICE) + common
        self._victims = [
            _Victim(ground.public, coordinators),
            _Victim(ground.members, coordinators),
            _Victim(ground.lone, methods_of(COORDINATOR_SERVICE, CLUSTER_SERVICE)),
            _Victim(ground.verifier, methods_of(VERIFIER_SERVICE) + common),
            *(_Victim(address, drafters) for address in ground.drafters),
        ]

    async def act(self, case: Case) -> None:
        """Make one call."""
        chance = case.chance()
        victim = chance.choice(self._victims)
        method = chance.choices(victim.methods, [_weight(each) for each in victim.methods])[0]
        spite = Spite.of(chance)
        messages = self._said(case, spite, method)
        address = self._rightly(victim.address, method, messages)
        manner = self._manner(chance, method, ends=method.name in _ENDING and address != self._scene.ground.lone)
        method = _renamed(chance, method)
        if chance.random() < 0.03:  # a connection of its own, which breaks with the call
            async with grpc.aio.insecure_channel(address, options=UNBOUNDED) as channel:
                end = await call(channel, method, messages, manner)
        else:
            end = await call(self._scene.channel(address), method, messages, manner)
        self._scene.tally.ended(case, method, end)

    def _said(self, case: Case, spite: Spite, method: Method) -> list[bytes]:
        """The messages of the call."""
        honest = self._honest(spite, method)
        if method.name.endswith(".Join"):
            return [
                *_introduced(case, spite, honest[:1], method),
                *(_fuzzed(spite, each, method) for each in honest[1:]),
            ]
        return [_fuzzed(spite, each, method) for each in honest]

    def _honest(self, spite: Spite, method: Method) -> Sequence[bytes | None]:
        """What is to be mutated, in order; None where a message is to be generated."""
        chance, said = spite.chance, self._scene.corpus.of(method.path)
        if not method.streams_in:
            requests = self._scene.corpus.requests(method.path)
            return [chance.choice(requests) if requests else None]
        most = _BIDI.get(method.name.rpartition(".")[2], 4)
        if not said or chance.random() < 0.1:
            return [None] * chance.randint(1, most)
        chosen = chance.choices(said, k=chance.randint(1, 4))
        others = chance.choice(said).requests
        return spite.mutator.shuffled([*chain.from_iterable(each.requests for each in chosen)], others)[:most]

    def _rightly(self, address: str, method: Method, messages: Sequence[bytes]) -> str:
        """A verifier is trusted with texts, so a hostile one joins the cluster that has no honest client."""
        ground = self._scene.ground
        joins = method.name.endswith(".Join") and messages and _is_verifier(messages[0])
        return ground.lone if joins and address in (ground.public, ground.members) else address

    def _manner(self, chance: random.Random, method: Method, *, ends: bool) -> Manner:
        """How the call behaves; some of those that come to an end by themselves are listened to until then."""
        shown = self._shown(chance, method)
        if chance.random() < 0.05:
            shown = (*shown, chance.choice(_STRANGE))
        patient = not method.streams_out or (ends and chance.random() < _PATIENT)
        cut_s = chance.uniform(0, _CUT_S) if chance.random() < 0.8 else _LONGER_S
        return Manner(
            metadata=shown,
            timeout_s=chance.choice(_SHORT_S) if chance.random() < 0.03 else 60.0,
            pauses=tuple(chance.choice((0.0, 0.0, 0.0, 0.001, 0.01)) for _ in range(5)),
            hangs_up=chance.random() < 0.7,
            listens_s=LISTENS_S if patient else cut_s,
            reads=patient or chance.random() < 0.95,
        )

    def _shown(self, chance: random.Random, method: Method) -> tuple[tuple[str, str], ...]:
        """The token that the method takes, as a rule; else another's, a wrong one, or none."""
        drawn, roles = chance.random(), needed(method.path)
        if drawn < 0.03 or not roles:
            return ()
        if drawn < 0.05:
            return (("authorization", "Bearer nobody"),)
        role = chance.choice(sorted(CallerRole if drawn < 0.08 else roles))
        return self._scene.ground.shown(role.value)


def _weight(method: Method) -> float:
    return _WEIGHTS.get(method.name.rpartition(".")[2], 1.0)


def _fuzzed(spite: Spite, honest: bytes | None, method: Method) -> bytes:
    """Make one message of a call. In a stream few are broken, since the first broken one ends it."""
    broken = 0.015 if method.streams_in else 0.2
    return spite.message(honest, method.request, broken=broken, made=0.1, kept=0.35 if method.streams_in else 0.1)


def _introduced(case: Case, spite: Spite, honest: Sequence[bytes | None], method: Method) -> list[bytes]:
    """The first report of a member: as a rule an honest one, under a name of its own, so that more than that is read."""
    if not honest or honest[0] is None or spite.chance.random() < 0.3:
        return [_fuzzed(spite, each, method) for each in honest]
    message = JoinRequest.FromString(honest[0])
    if message.WhichOneof("report") == "register" and spite.chance.random() < 0.8:
        message.register.member_id = f"fuzz-{case.name}"
    return [message.SerializeToString()]


def _is_verifier(data: bytes) -> bool:
    """True if a coordinator might take this for the first report of a verifier."""
    try:
        return JoinRequest.FromString(data).register.HasField("verifier")
    except DecodeError:
        return False


def _renamed(chance: random.Random, method: Method) -> Method:
    """`method`, or at times one that does not exist."""
    if chance.random() > 0.005:
        return method
    return Method(chance.choice(_NEVER_THERE), method.streams_in, method.streams_out, method.request, method.answer)
