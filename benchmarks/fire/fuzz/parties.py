"""The hostile parties: who calls whom, or is called, in one case. What is said is the strategies' and the corpus's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import DecodeError

from benchmarks.fire.fuzz import calls
from benchmarks.fire.fuzz.calls import Ended, Manner, Method, call
from benchmarks.fire.fuzz.corpus import Corpus
from benchmarks.fire.fuzz.draws import Case, Draws
from benchmarks.fire.fuzz.ground import Ground
from benchmarks.fire.fuzz.messages import hostile, shuffled, spoiled
from benchmarks.fire.fuzz.peer import Hostility, Peer, passed_on, remembered, serving
from benchmarks.fire.fuzz.recording import NAMES, decoding
from benchmarks.fire.fuzz.tally import Tally
from benchmarks.known import Known
from specsplit.client import AsyncClient
from specsplit.errors import SpecsplitError
from specsplit.features import FeatureNeed
from specsplit.identity import CallerRole
from specsplit.rpc import CLUSTER_SERVICE, COORDINATOR_SERVICE, DRAFTER_SERVICE, VERIFIER_SERVICE
from specsplit.rpc.permissions import needed
from specsplit.v1.cluster_pb2 import JoinRequest
from specsplit.v1.drafter_pb2 import GetDrafterInfoResponse
from specsplit.v1.verifier_pb2 import DecodeResponse
from specsplit.values import Endpoint
from specsplit.wire.drafter import drafter_info_from_wire
from specsplit.wire.verifier import decode_to_wire

HANG_S: Final = 60.0
"""A session with a hostile drafter that is not over by then hangs."""
_WEIGHTS: Final = {
    "Generate": 4,
    "Join": 4,
    "Decode": 4,
    "Draft": 12,
    "Check": 0.3,
    "List": 0.3,
    "ServerReflectionInfo": 0.5,
}
"""How often a method is called, where that is not once."""
_MOST: Final = {"Draft": 120, "Join": 40}
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
_PATIENT: Final = {calls.GENERATE.path: 0.15, calls.DECODE.path: 0.15, calls.DRAFT.path: 0.5}
"""Methods that stream their answers and come to an end, Draft once its caller has hung up: the share of callers who wait for it."""
_PATIENCE_S: Final = 3.0
_ASKED_S: Final = 20.0
"""The client library has hung if it is not done with one question by then."""


@dataclass(frozen=True)
class Scene:
    """What the parties of one run share: their victims, what honest ones said, and where to tell what came of it."""

    ground: Ground
    known: Sequence[Known]
    corpus: Corpus
    tally: Tally
    _channels: dict[str, grpc.aio.Channel] = field(default_factory=dict[str, grpc.aio.Channel])

    def channel(self, address: str) -> grpc.aio.Channel:
        """A connection that all who call this address share."""
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=calls.UNBOUNDED)
        return self._channels[address]

    async def close(self) -> None:
        """Close every channel."""
        for channel in self._channels.values():
            await channel.close()


class Party(Protocol):
    """A hostile party."""

    async def act(self, case: Case) -> None:
        """Do what is drawn for this case, and tell the tally."""
        ...


class Caller:
    """In every case one call: of any method of any port, by nobody, with somebody else's role, or with the role that it takes."""

    def __init__(self, scene: Scene) -> None:
        self._scene, ground = scene, scene.ground
        common, coordinator = (
            calls.methods_of(calls.HEALTH, calls.REFLECTION),
            calls.methods_of(COORDINATOR_SERVICE, CLUSTER_SERVICE),
        )
        self._victims = [
            (ground.public, coordinator + common),
            (ground.members, coordinator + common),
            (ground.lone, coordinator),
            (ground.verifier, calls.methods_of(VERIFIER_SERVICE) + common),
            *((address, calls.methods_of(DRAFTER_SERVICE) + common) for address in ground.drafters),
        ]

    async def act(self, case: Case) -> None:
        """Make one call."""
        draws = case.draws()
        chance, ground = draws.chance, self._scene.ground
        address, methods = chance.choice(self._victims)
        weights = [_WEIGHTS.get(each.path.rpartition("/")[2], 1.0) for each in methods]
        method = chance.choices(methods, weights)[0]
        messages = self._said(case, draws, method)
        if method is calls.JOIN and messages and _is_verifier(messages[0]):
            address = (
                ground.lone
            )  # a verifier is trusted with texts, so a hostile one joins where no honest client asks
        patience = 0.0 if address == ground.lone else _PATIENT.get(method.path, 0.0)
        manner = self._manner(chance, method, patient=not method.streams_out or chance.random() < patience)
        if chance.random() < 0.005:
            never = chance.choice(_NEVER_THERE)
            method = Method(never, method.streams_in, method.streams_out, method.request, method.answer)
        if chance.random() < 0.03:  # a connection of its own, which breaks with the call
            async with grpc.aio.insecure_channel(address, options=calls.UNBOUNDED) as channel:
                end = await call(channel, method, messages, manner)
        else:
            end = await call(self._scene.channel(address), method, messages, manner)
        self._scene.tally.ended(case, method, end)

    def _said(self, case: Case, draws: Draws, method: Method) -> list[bytes]:
        """The messages of the call. In a stream few are broken, since the first broken one ends it."""
        broken, kept = (0.015, 0.35) if method.streams_in else (0.2, 0.1)
        honest = self._honest(draws, method)
        said = [hostile(draws, each, method.request, broken, made=0.1, kept=kept) for each in honest]
        if method is calls.JOIN and honest and honest[0] and draws.chance.random() < 0.7:
            said[0] = _named(honest[0], f"fuzz-{case.name}")  # more is read of a member that there is not yet
        return said

    def _honest(self, draws: Draws, method: Method) -> Sequence[bytes | None]:
        """What they begin as, in order; None where a message is to be made."""
        chance, said = draws.chance, self._scene.corpus.of(method.path)
        if not method.streams_in:
            requests = self._scene.corpus.requests(method.path)
            return [chance.choice(requests) if requests else None]
        most = _MOST.get(method.path.rpartition("/")[2], 4)
        if not said or chance.random() < 0.1:
            return [None] * chance.randint(1, most)
        chosen = chain.from_iterable(each.requests for each in chance.choices(said, k=chance.randint(1, 4)))
        return draws(shuffled(list(chosen), chance.choice(said).requests))[:most]

    def _manner(self, chance: random.Random, method: Method, *, patient: bool) -> Manner:
        """How the call behaves; a patient caller hangs up when he has said everything, and listens until the call is over."""
        shown = self._shown(chance, method)
        if chance.random() < 0.05:
            shown = (*shown, chance.choice(_STRANGE))
        return Manner(
            metadata=shown,
            timeout_s=chance.choice((0.001, 0.02)) if chance.random() < 0.03 else 60.0,
            pauses=tuple(chance.choice((0.0, 0.0, 0.0, 0.001, 0.01)) for _ in range(5)),
            hangs_up=patient or chance.random() < 0.7,
            listens_s=calls.LISTENS_S if patient else chance.uniform(0, 0.25) if chance.random() < 0.8 else 2.0,
            reads=patient or chance.random() < 0.95,
        )

    def _shown(self, chance: random.Random, method: Method) -> tuple[tuple[str, str], ...]:
        """The token that the method takes, as a rule; else another's, a wrong one, or none."""
        drawn, roles = chance.random(), needed(method.path)
        if drawn < 0.03 or not roles:
            return ()
        if drawn < 0.05:
            return (("authorization", "Bearer nobody"),)
        return self._scene.ground.shown(chance.choice(sorted(CallerRole if drawn < 0.08 else roles)).value)


class Between:
    """In every case a relay between the verifier and a drafter, which is hostile to one of them or to both.

    Whatever it makes of the drafter's answers, the texts of its sessions are the target's own; and however the verifier's part of the
    stream is changed, the drafter ends it with a status of its own.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def act(self, case: Case) -> None:
        """Have a few sessions decoded with it as their drafter, and hold their texts against what they ought to be."""
        draws, scene, ends = case.draws(), self._scene, list[Ended]()
        chance = draws.chance
        at = chance.randrange(len(scene.ground.drafters))
        texts = [(chance.choice(scene.known), chance.randint(8, 64)) for _ in range(chance.randint(1, 3))]
        requests, answers = chance.choice(((False, True), (False, True), (True, False), (True, True)))
        hostility = Hostility(
            draws, broken=chance.choice((0.0, 0.002, 0.05)), made=0.02, kept=chance.choice((0.5, 0.9, 0.98)),
            more=chance.choice((0.0, 0.02, 0.2)), ends=chance.choice((0.0, 0.02, 0.2)), requests=requests, answers=answers,
        )  # fmt: skip
        honest = passed_on(scene.channel(scene.ground.drafters[at]), ends)
        async with serving(Peer(honest, hostility, scene.tally.messages)) as address:
            drafter = Endpoint(f"hostile-{case.number}", address, self._need(at))
            await asyncio.gather(*(self._decoded(case, drafter, known, new) for known, new in texts))
        for end in ends:
            scene.tally.status("DrafterService.Draft behind a hostile relay", end.code.name)
            if (fault := end.fault(calls.DRAFT)) is not None:
                scene.tally.fault(case, fault)

    def _need(self, at: int) -> FeatureNeed:
        """What this drafter needs of the target, as it has said itself."""
        told = self._scene.corpus.answers(f"/{DRAFTER_SERVICE}/GetDrafterInfo")
        return drafter_info_from_wire(GetDrafterInfoResponse.FromString(told[at])).features if told else FeatureNeed()

    async def _decoded(self, case: Case, drafter: Endpoint, known: Known, new: int) -> None:
        scene = self._scene
        request = decode_to_wire(decoding(known, new, drafter, f"recorded-{case.number % NAMES}")).SerializeToString()
        manner = Manner(scene.ground.shown("member"), HANG_S, listens_s=HANG_S + 5)
        end = await call(scene.channel(scene.ground.verifier), calls.DECODE, [request], manner)
        scene.tally.status("VerifierService.Decode with a hostile drafter", end.code.name)
        tokens = [token for data in end.answers for token in DecodeResponse.FromString(data).tokens.token_ids]
        if end.code is grpc.StatusCode.OK:
            if not known.begins_with(tokens, new):
                scene.tally.fault(case, f"another text: {tokens} in the place of {known.tokens[:new]}")
        elif end.code is not grpc.StatusCode.RESOURCE_EXHAUSTED:  # other hostile callers take up its places
            what = "a session of an honest verifier ended with"
            scene.tally.fault(case, f"{what} {end.code.name}: {end.sentence}")


class Member:
    """In every case a verifier that joins a coordinator, reports what it likes, and answers sessions by what honest ones said.

    A verifier is trusted with texts, so requests there need only end.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._said = [
            each.requests
            for each in scene.corpus.of(calls.JOIN.path)
            if each.requests and _is_verifier(each.requests[0])
        ]

    async def act(self, case: Case) -> None:
        """Join, be asked, leave."""
        draws, scene = case.draws(), self._scene
        chance, shown = draws.chance, scene.ground.shown
        broken = chance.choice((0.0, 0.02, 0.2))
        hostility = Hostility(draws, broken, broken, chance.choice((0.3, 0.8, 0.95)))
        async with serving(Peer(remembered(scene.corpus, draws), hostility, scene.tally.messages)) as address:
            manner = Manner(shown("member"), 20.0, (0.02,), hangs_up=False, listens_s=_PATIENCE_S)
            reports = self._reports(case, draws, address)
            joined = asyncio.create_task(call(scene.channel(scene.ground.lone), calls.JOIN, reports, manner))
            await asyncio.sleep(0.05)
            await asyncio.gather(*(self._asked(case, draws) for _ in range(chance.randint(1, 4))))
            joined.cancel()
            with suppress(asyncio.CancelledError):
                if (fault := (await joined).fault(calls.JOIN)) is not None:
                    scene.tally.fault(case, fault)

    def _reports(self, case: Case, draws: Draws, address: str) -> Iterator[bytes]:
        """Who it is, as an honest verifier says it, and then how it fares."""
        said = draws.chance.choice(self._said)
        yield _named(said[0], f"hostile-{case.number}", address)
        for _ in range(30):
            self._scene.tally.messages[calls.JOIN.name] += 1
            yield hostile(draws, draws.chance.choice(said[1:]), calls.JOIN.request, broken=0.01, made=0.02, kept=0.5)

    async def _asked(self, case: Case, draws: Draws) -> None:
        """A request on its way to whoever decodes it. It need not succeed; it has to end, and in time."""
        scene = self._scene
        asked = draws.chance.choice(scene.corpus.requests(calls.GENERATE.path))
        request = hostile(draws, asked, calls.GENERATE.request, broken=0.0, made=0.0, kept=0.9)
        manner = Manner(scene.ground.shown("client"), draws.chance.choice((_PATIENCE_S, None)))
        end = await call(scene.channel(scene.ground.lone), calls.GENERATE, [request], manner)
        scene.tally.status("CoordinatorService.Generate with a hostile verifier", end.code.name)
        if end.code is grpc.StatusCode.CANCELLED:
            scene.tally.fault(case, f"a request hung: it was not over after {manner.listens_s:g} s")
        elif (fault := end.fault(calls.GENERATE)) is not None:
            scene.tally.fault(case, fault)


class Program:
    """In every case a program that asks a hostile coordinator: the client library raises errors of its own or none."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def act(self, case: Case) -> None:
        """Ask for everything."""
        draws, scene = case.draws(), self._scene
        hostility = Hostility(draws, broken=0.1, made=0.1, kept=0.6)
        handler = Peer(remembered(scene.corpus, draws), hostility, scene.tally.messages)
        async with serving(handler) as address, AsyncClient(address) as client:
            for ask in _questions(client):
                await self._asked(case, ask)

    async def _asked(self, case: Case, ask: Callable[[], Awaitable[object]]) -> None:
        tally, name = self._scene.tally, "OK"
        try:
            async with asyncio.timeout(_ASKED_S):
                await ask()
        except SpecsplitError as error:
            name = type(error).__name__
        except TimeoutError:
            tally.fault(case, f"the client library hung for {_ASKED_S:g} s")
        except Exception as error:  # noqa: BLE001 (that is what is looked for)
            tally.fault(case, f"the client library raised {error!r}")
        tally.status("the client library", name)


def _questions(client: AsyncClient) -> Sequence[Callable[[], Awaitable[object]]]:
    return (
        lambda: client.generate("a", max_tokens=4, logprobs=1, timeout_s=5),
        lambda: client.generate((1, 2), max_tokens=30, n=2, timeout_s=5),
        *(lambda ask=ask: ask(timeout_s=5) for ask in (client.model_info, client.cluster, client.plan, client.tracing)),
        *(lambda ask=ask: ask(timeout_s=5) for ask in (client.set_plan, client.set_tracing)),
    )


class Directing(grpc.GenericRpcHandler):
    """The hostile coordinator that stray members look for. Every Join is a case, numbered from `first`."""

    def __init__(self, scene: Scene, seed: int, first: int) -> None:
        self._scene = scene
        self._cases = (Case(seed, "coordinator", number) for number in count(first))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Whatever is called."""
        scene, draws = self._scene, next(self._cases).draws()
        scene.tally.cases += 1
        broken = draws.chance.choice((0.0, 0.01, 0.1))
        hostility = Hostility(draws, broken, 0.2 if broken else 0.02, 0.3, introduces=True)
        return Peer(remembered(scene.corpus, draws, most=150), hostility, scene.tally.messages).service(
            handler_call_details
        )


class Noise:
    """In every case one connection: bytes that are no HTTP/2, or begin as such, or a request where plain HTTP is spoken."""

    def __init__(self, scene: Scene) -> None:
        self._scene, ground = scene, scene.ground
        self._grpc = [ground.public, ground.members, ground.verifier, ground.lone, *ground.drafters]

    async def act(self, case: Case) -> None:
        """Connect, say something, hang up."""
        draws, metrics = case.draws(), self._scene.ground.metrics
        plain = bool(metrics) and draws.chance.random() < 0.4
        host, _, port = draws.chance.choice([*metrics] if plain else self._grpc).rpartition(":")
        data = _request(draws) if plain else _frames(draws.chance)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(data)
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), 0.3)
                writer.close()
        self._scene.tally.messages["connections of other bytes"] += 1


def _request(draws: Draws) -> bytes:
    get = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"
    return draws.chance.choice((get, draws(spoiled(get)), get + b"x" * 70_000))


def _frames(chance: random.Random) -> bytes:
    """A preface and frames with random heads, or anything."""
    if chance.random() < 0.3:
        return chance.randbytes(chance.randint(0, 2_000))
    frames = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))]
    for _ in range(chance.randint(0, 20)):
        length = chance.choice((0, 4, 8, 100))
        kind_and_flags, stream = bytes((chance.randint(0, 12), chance.getrandbits(8))), chance.getrandbits(31)
        frames.append(length.to_bytes(3, "big") + kind_and_flags + stream.to_bytes(4, "big") + chance.randbytes(length))
    return b"".join(frames)


def _named(data: bytes, member_id: str, address: str = "") -> bytes:
    """The first report of a member, under another name and at another address; any other report as it is."""
    message = JoinRequest.FromString(data)
    if message.WhichOneof("report") == "register":
        message.register.member_id, message.register.address = member_id, address or message.register.address
    return message.SerializeToString()


def _is_verifier(data: bytes) -> bool:
    """True if a coordinator might take this for the first report of a verifier."""
    try:
        return JoinRequest.FromString(data).register.HasField("verifier")
    except DecodeError:
        return False


PARTIES: Final[dict[str, tuple[Callable[[Scene], Party], float]]] = {
    "client": (Caller, 14.0), "drafter": (Between, 4.0), "verifier": (Member, 1.0), "answers": (Program, 0.5), "noise": (Noise, 0.5),
}  # fmt: skip
"""How often each acts. A hostile coordinator's cases are drawn when a member joins it."""
