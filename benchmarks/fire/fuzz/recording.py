"""Honest conversations on every RPC, made before the first hostile message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import grpc
from google.protobuf.message import Message

from benchmarks.fire.fuzz.calls import DECODE, DECODE_SESSIONS, GENERATE, JOIN, METHODS, UNBOUNDED, WATCH, Manner, call
from benchmarks.fire.fuzz.corpus import Conversation, Corpus
from benchmarks.fire.fuzz.ground import Ground
from benchmarks.fire.fuzz.peer import Peer, passed_on, serving
from benchmarks.known import Known
from specsplit import membership, values
from specsplit.client import AsyncClient, make_request
from specsplit.features import FeatureNeed
from specsplit.requests import ChatMessage, ChatPrompt, GenerateRequest, TokenPrompt
from specsplit.rpc import COORDINATOR_SERVICE, DRAFTER_SERVICE
from specsplit.sessions import Begin, DecodeRequest
from specsplit.v1.drafter_pb2 import GetDrafterInfoResponse
from specsplit.v1.verifier_pb2 import DecodeSessionsRequest
from specsplit.values import PlanChanges, Sampling, Stopping
from specsplit.wire import cluster as cluster_wire
from specsplit.wire import coordinator as wire
from specsplit.wire.drafter import drafter_info_from_wire, drafter_info_request
from specsplit.wire.limits import MAX_SCOPE
from specsplit.wire.sessions import begin_event, leave_event, sessions_requests
from specsplit.wire.verifier import decode_to_wire
from specsplit.wire.watching import watch_to_wire

DRAFTER_INFO: Final = f"/{DRAFTER_SERVICE}/GetDrafterInfo"
NAMES: Final = 4
"""Sessions that are watched are called recorded-0 and so on, later ones too, so that watching one again finds it."""
_NEW: Final = 24
_PATIENT: Final = Manner()
_BRIEF: Final = Manner(listens_s=3.0)
_MEMBER: Final = Manner(pauses=(0.2,), hangs_up=False, listens_s=1.5)
_SHARED: Final = Manner(pauses=(0.05,), hangs_up=False, listens_s=2.0)
_PLAN: Final = PlanChanges(num_steps=5, topk=4, num_draft_tokens=16, wait_budget_us=3000, draft_ahead=True)
_CONTROL: Final = values.Control(max_draft_tokens=16)
_TRACED: Final = values.TraceChanges(level=1, ratio=0.5, modules=("verifier",))


async def recorded(ground: Ground, known: Sequence[Known]) -> Corpus:
    """What all honest parties say, on every RPC; of what a coordinator may tell its members also what this one does not."""
    said: list[Conversation] = []

    async def say(
        at: str, path: str, role: str, requests: Sequence[Message], how: Manner = _PATIENT
    ) -> tuple[bytes, ...]:
        sent = [each.SerializeToString() for each in requests]
        async with grpc.aio.insecure_channel(at, options=UNBOUNDED) as channel:
            end = await call(channel, METHODS[path], sent, replace(how, metadata=ground.shown(role)))
        if not end.answers and path != WATCH.path:  # a watch that comes before its session finds none
            raise RuntimeError(f"nothing was recorded of {path}: {end.code.name} {end.sentence}")
        said.append(Conversation(path, sent, list(end.answers)))
        return end.answers

    async with AsyncClient(ground.public, ground.transport("honest")) as client:
        members = (await client.cluster()).members
    for asked in _asked(known):
        await say(ground.public, GENERATE.path, "client", [wire.generate_to_wire(asked)])
    for name, request in _operated():
        await say(ground.members, f"/{COORDINATOR_SERVICE}/{name}", "operator", [request])
    for address in ground.drafters:
        need = needed_by(await say(address, DRAFTER_INFO, "member", [drafter_info_request()]))
        async with grpc.aio.insecure_channel(address) as channel, serving(peer := Peer(passed_on(channel))) as relay:
            for number, each in enumerate(known[:NAMES]):
                request = decoding(each, _NEW, values.Endpoint("recorded", relay, need), f"recorded-{number}")
                watched = say(ground.verifier, WATCH.path, "member", [watch_to_wire(request.request_id)], _BRIEF)
                await asyncio.gather(say(ground.verifier, DECODE.path, "member", [decode_to_wire(request)]), watched)
        said += peer.conversations
    await say(ground.verifier, DECODE_SESSIONS.path, "member", sharing(known), _SHARED)
    await asyncio.gather(*(say(ground.lone, JOIN.path, "member", _reports(each), _MEMBER) for each in members))
    said += [Conversation(JOIN.path, [], _directives(interval_ms)) for interval_ms in (1, 5, 100, 2**32 - 1)]
    return Corpus(said)


def needed_by(answers: Sequence[bytes]) -> FeatureNeed:
    """What a drafter needs of the target, as it says first of all in these answers to GetDrafterInfo."""
    return drafter_info_from_wire(GetDrafterInfoResponse.FromString(answers[0])).features


def _asked(known: Sequence[Known]) -> Iterator[GenerateRequest]:
    """All that a client can ask for."""
    for each in known[:4]:
        asked = make_request(TokenPrompt(each.prompt), **each.options, logprobs=2, n=2 if each.temperature else 1)
        yield replace(asked, stopping=Stopping(_NEW), plan=PlanChanges(4, 3, 12, 2000))
    yield make_request("def mean(values):\n", max_tokens=_NEW, stop=["\n\n"], logit_bias={5: 1.0}, drafter="ngram")
    chat = ChatPrompt((ChatMessage("system", "be brief"), ChatMessage("user", "hello")))
    yield replace(make_request(chat, max_tokens=8), sampling=Sampling(0.7, 40, 0.9, 0.01, 0, repetition_penalty=1.1))
    asked = make_request("{", max_tokens=8, resume_from=(5, 6), drafter="none")
    yield replace(asked, sampling=Sampling(frequency_penalty=0.1, presence_penalty=0.1))


def _operated() -> Iterator[tuple[str, Message]]:
    """All that an operator asks for and changes, and takes back."""
    yield "SetPlan", wire.set_plan_to_wire(_PLAN, _CONTROL, reset=False)
    yield "SetTracing", wire.set_tracing_to_wire(_TRACED, reset=False)
    yield from (("GetPlan", wire.plan_request()), ("GetTracing", wire.tracing_request()))
    yield from (("GetModelInfo", wire.model_info_request()), ("GetCluster", wire.cluster_request()))
    yield "SetTracing", wire.set_tracing_to_wire(values.TraceChanges(), reset=True)
    yield "SetPlan", wire.set_plan_to_wire(PlanChanges(), values.Control(), reset=True)


def decoding(known: Known, count: int, drafter: values.Endpoint | None, request_id: str) -> DecodeRequest:
    """The session that ought to bring the first `count` tokens of a known text."""
    stopping, scope = Stopping(count, ignore_eos=True), request_id.encode()[:MAX_SCOPE]
    return DecodeRequest(request_id, known.prompt, known.sampling, stopping, _PLAN, drafter, scope=scope)


def sharing(known: Sequence[Known]) -> list[DecodeSessionsRequest]:
    """Sessions that share a stream, begun one after the other, two in one message, and one that is left."""
    begun = [
        begin_event(number, Begin(decoding(each, _NEW, None, f"shared-{number}"), 60.0))
        for number, each in enumerate(known[:NAMES], 1)
    ]
    together = [begun[:2], *([each] for each in begun[2:]), [leave_event(1)]]
    return [message for events in together for message in sessions_requests(events, 2**20)]


def _reports(member: membership.Member) -> list[Message]:
    """A membership like that of `member`, under another name."""
    lost, controllers, told = (), (), {}
    if isinstance(member.role, values.ModelInfo):
        lost, controllers = ("nobody",), ("static", "goodput")
        speculation = member.speculation or values.SpeculationReport("static")
        told = {"plan": member.plan or values.Plan(), "speculation": speculation, "prefixes": (1, 2, 3)}
    first = membership.Register(
        f"recorded-{member.member_id}", member.address, member.role, member.max_sessions, controllers
    )
    beats = [membership.Heartbeat(member.load, each, **told) for each in ((), (), lost)]
    return [cluster_wire.report_to_wire(each) for each in (first, *beats, membership.Draining())]


def _directives(interval_ms: int) -> list[bytes]:
    """All that a member may be told, but to leave."""
    other = values.Endpoint("recorded", "127.0.0.1:1")
    said: list[membership.Directive] = [membership.Registered(interval_ms), membership.Roster((other,))]
    said += [membership.PlanOrder(_PLAN, _CONTROL), membership.TracingOrder(_TRACED), membership.StartWave(1)]
    said += [membership.HandOver("recorded", other, 1), membership.Roster(), membership.PlanOrder()]
    return [cluster_wire.directive_to_wire(each).SerializeToString() for each in said]
