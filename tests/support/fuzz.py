"""Messages that nobody means, for every call of a server of this process: those that fire's fuzz part draws, a few hundred of them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from itertools import chain

import grpc
from google.protobuf.message import Message

from benchmarks.fire.fuzz.calls import HEALTH, REFLECTION, Manner, Method, call, methods_of
from benchmarks.fire.fuzz.draws import Draws
from benchmarks.fire.fuzz.messages import hostile

__all__ = ["HEALTH", "REFLECTION", "check_no_tracebacks", "fuzz", "methods_of"]

CALLS_AT_ONCE = 32
TIMEOUT_S = 20.0
_OF_AN_EARLIER_LOOP = "PollerCompletionQueue._handle_events"
"""grpc.aio's own, of a call of an earlier test whose event loop is closed."""
_LISTENED_S = 0.05
"""How long a call that does not end by itself is listened to."""


async def fuzz(address: str, methods: Sequence[Method], examples: Sequence[Message], rounds: int) -> None:
    """Call each method so many times with messages of its own kind, some of them spoiled; see that each ends with a status of ours.

    Most messages begin as one of the `examples`, where there is one of that kind.
    """
    draws = Draws(random.Random(7))
    at_once = asyncio.Semaphore(CALLS_AT_ONCE)
    async with grpc.aio.insecure_channel(address) as channel:

        async def one(method: Method, messages: list[bytes]) -> None:
            async with at_once:
                listens_s = _LISTENED_S if method.name.endswith("Watch") else 2 * TIMEOUT_S
                end = await call(channel, method, messages, Manner(timeout_s=TIMEOUT_S, listens_s=listens_s))
                assert end.fault(method) is None, (end, messages)

        async with asyncio.TaskGroup() as calls:
            for method in chain.from_iterable([each] * rounds for each in methods):
                calls.create_task(one(method, _drawn(draws, method, examples)))


def check_no_tracebacks(records: Sequence[logging.LogRecord]) -> None:
    """See that nothing was logged as a bug."""
    told = [record.getMessage() for record in records if record.levelno >= logging.ERROR or record.exc_info]
    assert [sentence for sentence in told if _OF_AN_EARLIER_LOOP not in sentence] == []


def _drawn(draws: Draws, method: Method, examples: Sequence[Message]) -> list[bytes]:
    """The messages of one call."""
    fitting = [each.SerializeToString() for each in examples if each.DESCRIPTOR is method.request]
    count = draws.chance.randint(1, 3) if method.streams_in else 1
    honest = [draws.chance.choice(fitting) if fitting else None for _ in range(count)]
    return [hostile(draws, each, method.request, broken=0.3, made=0.4, kept=0.1) for each in honest]
