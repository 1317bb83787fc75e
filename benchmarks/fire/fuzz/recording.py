"""Honest conversations on every RPC, made before the first hostile message and written down by relays between the parties."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import grpc

from benchmarks.fire.fuzz.corpus import Corpus
from benchmarks.fire.fuzz.ground import Ground
from benchmarks.fire.fuzz.relay import relayed
from benchmarks.known import Known
from specsplit.client import AsyncClient
from specsplit.membership import Cluster, Member, Register
from specsplit.requests import ChatMessage, ChatPrompt
from specsplit.rpc import dial
from specsplit.rpc.member import Membership
from specsplit.sessions import DecodeRequest
from specsplit.v1 import drafter_pb2_grpc, verifier_pb2_grpc
from specsplit.values import (
    Control,
    DrafterInfo,
    Endpoint,
    ModelInfo,
    Plan,
    PlanChanges,
    SpeculationReport,
    Stopping,
    TraceChanges,
)
from specsplit.wire.drafter import drafter_info_request
from specsplit.wire.verifier import decode_to_wire
from specsplit.wire.watching import watch_to_wire

_NEW = 24
_MEMBER_S = 1.5
"""How long a membership lasts that is recorded."""


async def recorded(ground: Ground, known: Sequence[Known]) -> Corpus:
    """What all honest parties say, on every RPC."""
    async with AsyncExitStack() as stack:
        public, members, lone, verifier = [
            await stack.enter_async_context(relayed(address))
            for address in (ground.public, ground.members, ground.lone, ground.verifier)
        ]
        drafters = [await stack.enter_async_context(relayed(address)) for address in ground.drafters]
        cluster = await _asked(ground, public[0], known)
        await _operated(ground, members[0])
        drafter_infos = [each.role.features for each in cluster.members if isinstance(each.role, DrafterInfo)]
        for (address, _), need in zip(drafters, drafter_infos, strict=True):
            await _decoded(ground, verifier[0], Endpoint("recorded", address, need), known)
            await _drafter_asked(ground, address)
        await asyncio.gather(*(_joined(ground, lone[0], each) for each in cluster.members))
        relays = [public[1], members[1], lone[1], verifier[1], *(relay for _, relay in drafters)]
        return Corpus(said for relay in relays for said in relay.conversations)


async def _asked(ground: Ground, address: str, known: Sequence[Known]) -> Cluster:
    """A client that asks for all that one can ask for."""
    async with AsyncClient(address, ground.transport("honest")) as client:
        for each in known[:4]:
            await client.generate(
                each.prompt, max_tokens=_NEW, **each.options, logprobs=2, n=2 if each.temperature else 1,
                plan=PlanChanges(num_steps=4, topk=3, num_draft_tokens=12, wait_budget_us=2000),
            )  # fmt: skip
        await client.generate(
            "def mean(values):\n", max_tokens=_NEW, stop=["\n\n"], logit_bias={5: 1.0}, drafter="ngram"
        )
        conversation = ChatPrompt((ChatMessage("system", "be brief"), ChatMessage("user", "hello")))
        await client.generate(
            conversation, max_tokens=8, temperature=0.7, top_p=0.9, top_k=40, min_p=0.01, repetition_penalty=1.1
        )
        await client.generate(
            "{", max_tokens=8, resume_from=(5, 6), drafter="none", frequency_penalty=0.1, presence_penalty=0.1
        )
        await client.model_info()
        return await client.cluster()


async def _operated(ground: Ground, address: str) -> None:
    """An operator that changes what can be changed, and takes it back."""
    async with AsyncClient(address, ground.transport("operator")) as client:
        await client.set_plan(
            PlanChanges(num_steps=3, topk=2, num_draft_tokens=8, wait_budget_us=1000, draft_ahead=True)
        )
        await client.set_plan(control=Control(max_draft_tokens=16))
        await client.set_tracing(TraceChanges(level=1, ratio=0.5, modules=("verifier",)))
        await client.plan()
        await client.tracing()
        await client.set_tracing(reset=True)
        await client.set_plan(reset=True)


async def _decoded(ground: Ground, address: str, drafter: Endpoint, known: Sequence[Known]) -> None:
    """A coordinator that has sessions decoded, and looks on at one of them."""
    async with dial(address, ground.transport("member")) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        for number, each in enumerate(known[:4]):
            request = decoding(each, _NEW, drafter, f"recorded-{number}")
            watching = asyncio.create_task(
                _read_all(stub.Watch(watch_to_wire(request.request_id), wait_for_ready=True))
            )
            await _read_all(stub.Decode(decode_to_wire(request)))
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


def decoding(known: Known, count: int, drafter: Endpoint | None, request_id: str = "fuzz") -> DecodeRequest:
    """The session that ought to bring the first `count` tokens of a known text."""
    plan = PlanChanges(num_steps=5, topk=4, num_draft_tokens=16, wait_budget_us=3000, draft_ahead=True)
    return DecodeRequest(request_id, known.prompt, known.sampling, Stopping(count, ignore_eos=True), plan, drafter)


async def _read_all(call: grpc.aio.UnaryStreamCall[Any, Any]) -> None:
    with suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass


async def _drafter_asked(ground: Ground, address: str) -> None:
    async with dial(address, ground.transport("member")) as channel:
        await drafter_pb2_grpc.DrafterServiceStub(channel).GetDrafterInfo(drafter_info_request())


async def _joined(ground: Ground, address: str, member: Member) -> None:
    """A membership like that of `member`, under another name."""
    transport, verifies = ground.transport("member"), isinstance(member.role, ModelInfo)
    who = Register(
        f"recorded-{member.member_id}", member.address, member.role, member.max_sessions, ("static", "goodput")
    )
    who = who if verifies else replace(who, controllers=())
    plan, speculation = member.plan or Plan(), member.speculation or SpeculationReport("static")
    membership = Membership(
        partial(dial, address, transport), who, lambda: member.load,
        plan=(lambda: plan) if verifies else None,
        speculation=(lambda: speculation) if verifies else None,
        prefixes=(lambda: (1, 2, 3)) if verifies else tuple,
    )  # fmt: skip
    running = asyncio.create_task(membership.run())
    await asyncio.sleep(_MEMBER_S / 2)
    membership.report_lost("nobody")
    await asyncio.sleep(_MEMBER_S / 2)
    membership.report_draining()
    await asyncio.sleep(0.1)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
