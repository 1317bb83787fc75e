"""What goes on while faults strike: an operator changes the plan of all verifiers, and clients open and never send."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Final

import grpc

from benchmarks.fire.fuzz.calls import DECODE, DRAFT, GENERATE, JOIN, Manner, Method, call
from benchmarks.fire.mix import PLANS
from specsplit.cli.local import LocalCluster
from specsplit.client import AsyncClient
from specsplit.errors import DeadlineExceeded, Unavailable
from specsplit.values import Adaptive, Control

CHANGES: Final = "changes of the plan"
MUTES: Final = "clients that opened and never sent"


async def change_plans(address: str, chance: random.Random, counts: Counter[str]) -> None:
    """Change the plan until cancelled. That the coordinator is not there just then is as good."""
    async with AsyncClient(address) as client:
        while True:
            await asyncio.sleep(chance.uniform(1.0, 8.0))
            changes, control = chance.choice(PLANS), Control(chance.choice((*Adaptive, None)), None)
            reset = chance.random() < 0.5
            with suppress(Unavailable, DeadlineExceeded):
                await client.set_plan(changes, control, reset=reset, timeout_s=5.0)
                counts[CHANGES] += 1


async def open_mutely(cluster: LocalCluster, chance: random.Random, counts: Counter[str]) -> None:
    """Open connections and calls without a byte until cancelled, each beside the others and for a while."""
    async with asyncio.TaskGroup() as opened:
        while True:
            await asyncio.sleep(chance.uniform(0.1, 2.0))
            coordinator = [cluster.coordinator]
            called = {GENERATE: coordinator, JOIN: coordinator, DECODE: cluster.verifiers, DRAFT: cluster.drafters}
            method, at, holds_s = chance.choice((None, *called)), chance.random(), chance.uniform(0.1, 20.0)
            servers = cluster.children if method is None else called[method]
            if address := servers[int(at * len(servers))].address:  # or it is being started
                counts[MUTES] += 1
                opened.create_task(
                    _connected(address, holds_s) if method is None else _called(address, method, holds_s)
                )


async def _connected(address: str, seconds: float) -> None:
    """A connection. That the server is gone, or hangs up first, is as good."""
    host, _, port = address.rpartition(":")
    with suppress(OSError):
        _, writer = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.sleep(seconds)
        finally:
            writer.close()
            await writer.wait_closed()


async def _called(address: str, method: Method, seconds: float) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        manner = Manner(timeout_s=seconds, hangs_up=False, listens_s=seconds)
        await call(channel, replace(method, streams_in=True), [], manner)
