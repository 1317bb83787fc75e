"""The hostile parties: who calls whom, or is called, in one case. What is said is the strategies' and the corpus's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from typing import Any, Final

import grpc
from hypothesis import strategies as st

from benchmarks.fire.fuzz import calls
from benchmarks.fire.fuzz.calls import (
    DECODE,
    DECODE_SESSIONS,
    DRAFT,
    GENERATE,
    JOIN,
    METHODS,
    Ended,
    Manner,
    Method,
    call,
)
from benchmarks.fire.fuzz.corpus import Corpus
from benchmarks.fire.fuzz.draws import Case, Draws
from benchmarks.fire.fuzz.ground import Ground
from benchmarks.fire.fuzz.messages import hostile, read, shuffled, spoiled
from benchmarks.fire.fuzz.peer import Hostility, Peer, passed_on, remembered, serving
from benchmarks.fire.fuzz.recording import DRAFTER_INFO, NAMES, decoding, needed_by
from benchmarks.fire.fuzz.tally import Tally
from benchmarks.known import Known
from specsplit.client import AsyncClient
from specsplit.errors import SpecsplitError
from specsplit.identity import CallerRole
from specsplit.rpc import (
    CLUSTER_SERVICE,
    COORDINATOR_SERVICE,
    DRAFTER_SERVICE,
    VERIFIER_SERVICE,
    VLLM_ENGINE_SERVICE,
)
from specsplit.rpc.permissions import needed
from specsplit.v1.cluster_pb2 import JoinRequest
from specsplit.v1.verifier_pb2 import DecodeResponse
from specsplit.values import Endpoint
from specsplit.wire.verifier import decode_to_wire

HANG_S: Final = 60.0
"""A session with a hostile drafter that is not over by then hangs."""
_WEIGHTS: Final = {GENERATE.path: 4, JOIN.path: 4, DECODE.path: 4, DECODE_SESSIONS.path: 8, DRAFT.path: 12}
"""How often a method is called, where that is not once; those that are not ours, seldom."""
_MOST: Final = {DRAFT.path: 120, DECODE_SESSIONS.path: 20, JOIN.path: 40}
"""Messages of a stream, at most as a rule."""
_STRANGE: Final = (
    ("authorization", "Bearer "), ("authorization", "Basic eA=="), ("traceparent", "00-00-00-00"), ("traceparent", "x" * 5_000),
    ("grpc-encoding-x", "y"),
)  # fmt: skip
_NEVER_THERE: Final = ("/nowhere.Service/Method", f"/{COORDINATOR_SERVICE}/Nothing", f"/{VERIFIER_SERVICE}/")
_GET: Final = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"
_REQUESTS: Final = st.just(_GET) | spoiled(_GET) | st.just(_GET + b"x" * 70_000)
_FRAME: Final = st.builds(
    lambda kind, rest, data: len(data).to_bytes(3, "big") + bytes((kind,)) + rest + data, st.integers(0, 12),
    st.binary(min_size=5, max_size=5), st.sampled_from((0, 4, 8, 100)).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
)  # fmt: skip
"""A frame of HTTP/2: a kind, flags and stream that may be any, and a payload."""
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_FRAMED: Final = st.lists(_FRAME, max_size=20).map(lambda frames: _PREFACE + b"".join(frames))
_FRAMES: Final = st.one_of(_FRAMED, _FRAMED, st.binary(max_size=2_000))
_PATIENT: Final = {GENERATE.path: 0.15, DECODE.path: 0.15, DECODE_SESSIONS.path: 0.3, DRAFT.path: 0.5}
"""Methods that stream their answers and come to an end, those of many sessions once their caller has hung up: of callers, the share that
waits for it."""
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


Party = Callable[[Scene, Case], Awaitable[None]]
"""Does what is drawn for a case, and tells the tally."""


async def calling(scene: Scene, case: Case) -> None:
    """One call: of any method of any port, by nobody, with somebody else's role, or with the role that it takes."""
    draws, ground = case.draws(), scene.ground
    chance, coordinator = draws.chance, (COORDINATOR_SERVICE, CLUSTER_SERVICE, VLLM_ENGINE_SERVICE)
    ports = [(ground.public, coordinator), (ground.members, coordinator), (ground.lone, coordinator)]
    ports += [(ground.verifier, (VERIFIER_SERVICE,)), *((each, (DRAFTER_SERVICE,)) for each in ground.drafters)]
    address, services = chance.choice(ports)
    methods = [each for each in METHODS.values() if each.service in (*services, calls.HEALTH, calls.REFLECTION)]
    method = chance.choices(methods, [_WEIGHTS.get(each.path, 1.0 if each.is_ours else 0.4) for each in methods])[0]
    messages = _said(scene, case, draws, method)
    if method is JOIN and messages and _is_verifier(messages[0]):
        address = ground.lone  # a verifier is trusted with texts: it joins where no honest client asks
    patience = 0.0 if address == ground.lone else _PATIENT.get(method.path, 0.0)
    patient = not method.streams_out or chance.random() < patience
    manner = _manner(chance, _shown(ground, chance, method), patient=patient)
    if chance.random() < 0.005:
        method = replace(method, path=chance.choice(_NEVER_THERE))
    if chance.random() < 0.03:  # a connection of its own, which breaks with the call
        async with grpc.aio.insecure_channel(address, options=calls.UNBOUNDED) as channel:
            end = await call(channel, method, messages, manner)
    else:
        end = await call(scene.channel(address), method, messages, manner)
    scene.tally.ended(case, method, end)


def _said(scene: Scene, case: Case, draws: Draws, method: Method) -> list[bytes]:
    """The messages of a call. In a stream few are broken, since the first broken one ends it."""
    broken, kept = (0.015, 0.35) if method.streams_in else (0.2, 0.1)
    honest = _honest(scene.corpus, draws, method)
    said = [hostile(draws, each, method.request, broken, made=0.1, kept=kept) for each in honest]
    if method is JOIN and honest and honest[0] and draws.chance.random() < 0.7:
        said[0] = _named(honest[0], f"fuzz-{case.name}")  # more is read of a member that there is not yet
    return said


def _honest(corpus: Corpus, draws: Draws, method: Method) -> Sequence[bytes | None]:
    """What they begin as, in order; None where a message is to be made."""
    chance, said = draws.chance, [each for each in corpus.of(method.path) if each.requests]
    if not method.streams_in:
        return [chance.choice(corpus.requests(method.path) or [None])]
    most = _MOST.get(method.path, 4)
    if not said or chance.random() < 0.1:
        return [None] * chance.randint(1, most)
    chosen = chain.from_iterable(each.requests for each in chance.choices(said, k=chance.randint(1, 4)))
    return draws(shuffled(list(chosen), chance.choice(said).requests))[:most]


def _shown(ground: Ground, chance: random.Random, method: Method) -> tuple[tuple[str, str], ...]:
    """The token that the method takes, as a rule; else another's, a wrong one, or none; now and then something strange beside it."""
    drawn, roles = chance.random(), needed(method.path)
    strange = (chance.choice(_STRANGE),) if chance.random() < 0.05 else ()
    if drawn < 0.03 or not roles:
        return strange
    if drawn < 0.05:
        return (("authorization", "Bearer nobody"), *strange)
    return (*ground.shown(chance.choice(sorted(CallerRole if drawn < 0.08 else roles)).value), *strange)


def _manner(chance: random.Random, shown: tuple[tuple[str, str], ...], *, patient: bool) -> Manner:
    """How a call behaves; a patient caller hangs up when he has said everything, and listens until the call is over."""
    timeout_s = chance.choice((0.001, 0.02)) if chance.random() < 0.03 else 60.0
    pauses = tuple(chance.choice((0.0, 0.0, 0.0, 0.001, 0.01)) for _ in range(5))
    cut_s = chance.uniform(0, 0.25) if chance.random() < 0.8 else 2.0
    hangs_up, reads = patient or chance.random() < 0.7, patient or chance.random() < 0.95
    return Manner(shown, timeout_s, pauses, hangs_up, calls.LISTENS_S if patient else cut_s, reads)


async def drafting(scene: Scene, case: Case) -> None:
    """A relay between the verifier and a drafter, hostile to one of them or to both, and a few sessions that are decoded with it.

    Whatever it makes of the drafter's answers, the texts are the target's own; and however the verifier's part of the stream is
    changed, the drafter ends it with a status of its own.
    """
    draws, ground, ends = case.draws(), scene.ground, list[Ended]()
    chance = draws.chance
    at = chance.randrange(len(ground.drafters))
    texts = [(chance.choice(scene.known), chance.randint(8, 64)) for _ in range(chance.randint(1, 3))]
    hostility = Hostility(
        draws, broken=chance.choice((0.0, 0.002, 0.05)), made=0.02, kept=chance.choice((0.5, 0.9, 0.98)),
        more=chance.choice((0.0, 0.02, 0.2)), ends=chance.choice((0.0, 0.02, 0.2)),
        lost=chance.choice((*[0.0] * 7, 0.02, 0.5, 1.0)),
    )  # fmt: skip
    how = chance.choice(((hostility, None), (hostility, None), (None, hostility), (hostility, hostility)))
    need = needed_by(scene.corpus.answers(DRAFTER_INFO)[at:])
    honest = passed_on(scene.channel(ground.drafters[at]), ends)
    async with serving(Peer(honest, *how, scene.tally.messages)) as address:
        drafter = Endpoint(f"hostile-{case.number}", address, need)
        await asyncio.gather(*(_decoded(scene, case, drafter, known, new) for known, new in texts))
    for end in ends:
        scene.tally.ended(case, replace(DRAFT, path=f"{DRAFT.path} behind a hostile relay"), end)


async def _decoded(scene: Scene, case: Case, drafter: Endpoint, known: Known, new: int) -> None:
    request = decode_to_wire(decoding(known, new, drafter, f"recorded-{case.number % NAMES}")).SerializeToString()
    manner = Manner(scene.ground.shown("member"), HANG_S, listens_s=HANG_S + 5)
    end = await call(scene.channel(scene.ground.verifier), DECODE, [request], manner)
    scene.tally.status("VerifierService.Decode with a hostile drafter", end.code.name)
    tokens = [token for data in end.answers for token in DecodeResponse.FromString(data).tokens.token_ids]
    if end.code is grpc.StatusCode.OK:
        if not known.begins_with(tokens, new):
            scene.tally.fault(case, f"another text: {tokens} in the place of {known.tokens[:new]}")
    elif end.code is not grpc.StatusCode.RESOURCE_EXHAUSTED:  # other hostile callers take up its places
        scene.tally.fault(case, f"a session of an honest verifier ended with {end.code.name}: {end.sentence}")


async def verifying(scene: Scene, case: Case) -> None:
    """A verifier that joins a coordinator, reports what it likes, and answers sessions by what honest ones said: they need only end."""
    draws, ground = case.draws(), scene.ground
    broken, kept = draws.chance.choice((0.0, 0.02, 0.2)), draws.chance.choice((0.3, 0.8, 0.95))
    handler = Peer(remembered(scene.corpus, draws), Hostility(draws, broken, broken, kept), None, scene.tally.messages)
    async with serving(handler) as address:
        manner = Manner(ground.shown("member"), 20.0, (0.02,), hangs_up=False, listens_s=_PATIENCE_S)
        reports = _reports(scene, case, draws, address)
        joined = asyncio.create_task(call(scene.channel(ground.lone), JOIN, reports, manner))
        await asyncio.sleep(0.05)
        await asyncio.gather(*(_generated(scene, case, draws) for _ in range(draws.chance.randint(1, 4))))
        joined.cancel()
        with suppress(asyncio.CancelledError):
            scene.tally.ended(case, JOIN, await joined)


def _reports(scene: Scene, case: Case, draws: Draws, address: str) -> Iterator[bytes]:
    """Who it is, as an honest verifier says it, and then how it fares."""
    members = [each.requests for each in scene.corpus.of(JOIN.path)]
    said = draws.chance.choice([each for each in members if each and _is_verifier(each[0])])
    yield _named(said[0], f"hostile-{case.number}", address)
    for _ in range(30):
        yield hostile(draws, draws.chance.choice(said[1:]), JOIN.request, broken=0.01, made=0.02, kept=0.5)


async def _generated(scene: Scene, case: Case, draws: Draws) -> None:
    """A request on its way to whoever decodes it. It need not succeed; it has to end, and in time."""
    asked = draws.chance.choice(scene.corpus.requests(GENERATE.path))
    request = hostile(draws, asked, GENERATE.request, broken=0.0, made=0.0, kept=0.9)
    manner = Manner(scene.ground.shown("client"), draws.chance.choice((_PATIENCE_S, None)))
    end = await call(scene.channel(scene.ground.lone), GENERATE, [request], manner)
    if end.code is grpc.StatusCode.CANCELLED:
        scene.tally.fault(case, f"a request hung: it was not over after {manner.listens_s:g} s")
    scene.tally.ended(case, replace(GENERATE, path=f"{GENERATE.path} with a hostile verifier"), end)


async def asking(scene: Scene, case: Case) -> None:
    """A program that asks a hostile coordinator for everything: the client library raises errors of its own or none."""
    draws, tally = case.draws(), scene.tally
    hostility = Hostility(draws, broken=0.1, made=0.1, kept=0.6)
    async with (
        serving(Peer(remembered(scene.corpus, draws), hostility, None, tally.messages)) as address,
        AsyncClient(address) as client,
    ):
        generate = partial(client.generate, "a", max_tokens=4, logprobs=1), partial(client.generate, (1, 2), n=2)
        others = client.model_info, client.cluster, client.plan, client.tracing, client.set_plan, client.set_tracing
        for ask in (*generate, *others):
            name = "OK"
            try:
                async with asyncio.timeout(_ASKED_S):
                    await ask(timeout_s=5)
            except SpecsplitError as error:
                name = type(error).__name__
            except TimeoutError:
                tally.fault(case, f"the client library hung for {_ASKED_S:g} s")
            except Exception as error:  # noqa: BLE001 (that is what is looked for)
                tally.fault(case, f"the client library raised {error!r}")
            tally.status("the client library", name)


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
        hostility = Hostility(draws, broken, 0.2 if broken else 0.02, 0.3)
        honest = remembered(scene.corpus, draws, most=150)
        return Peer(honest, hostility, None, scene.tally.messages).service(handler_call_details)


async def babbling(scene: Scene, case: Case) -> None:
    """One connection: bytes that are no HTTP/2, or begin as such, or a request where plain HTTP is spoken."""
    draws, ground = case.draws(), scene.ground
    plain = bool(ground.metrics) and draws.chance.random() < 0.4
    served = (
        ground.metrics if plain else [ground.public, ground.members, ground.verifier, ground.lone, *ground.drafters]
    )
    host, _, port = draws.chance.choice(served).rpartition(":")
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(draws(_REQUESTS if plain else _FRAMES))
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(), 0.3)
            writer.close()
    scene.tally.messages["connections of other bytes"] += 1


def _named(data: bytes, member_id: str, address: str = "") -> bytes:
    """The first report of a member, under another name and at another address; any other report as it is."""
    message = JoinRequest.FromString(data)
    if message.WhichOneof("report") == "register":
        message.register.member_id, message.register.address = member_id, address or message.register.address
    return message.SerializeToString()


def _is_verifier(data: bytes) -> bool:
    """True if a coordinator might take this for the first report of a verifier."""
    message = read(JoinRequest, data)
    return message is not None and message.register.HasField("verifier")


PARTIES: Final[dict[str, Party]] = {
    "client": calling, "drafter": drafting, "verifier": verifying, "answers": asking, "noise": babbling,
}  # fmt: skip
