"""Bytes that are no HTTP/2, or that begin as such, at every port; and requests at the ports that speak plain HTTP."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Final

from benchmarks.fire.fuzz.case import Case
from benchmarks.fire.fuzz.generated import Generator
from benchmarks.fire.fuzz.mutated import Mutator
from benchmarks.fire.fuzz.scene import Scene

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS: Final = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_GET: Final = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"
_LISTENED_S: Final = 0.3


class Noise:
    """In every case one connection."""

    name = "noise"

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        ground = scene.ground
        self._grpc = [ground.public, ground.members, ground.verifier, ground.lone, *ground.drafters]

    async def act(self, case: Case) -> None:
        """Connect, say something, hang up."""
        chance = case.chance()
        plain = bool(self._scene.ground.metrics) and chance.random() < 0.4
        address = chance.choice([*self._scene.ground.metrics] if plain else self._grpc)
        data = _request(chance) if plain else _frames(chance)
        host, _, port = address.rpartition(":")
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(data)
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), _LISTENED_S)
                writer.close()
        self._scene.tally.messages["connections of other bytes"] += 1


def _request(chance: random.Random) -> bytes:
    mutator = Mutator(chance, Generator(chance))
    return chance.choice((_GET, mutator.spoiled(_GET), _GET[: chance.randint(0, len(_GET))], _GET + b"x" * 70_000))


def _frames(chance: random.Random) -> bytes:
    """A preface and frames with random heads, or anything."""
    if chance.random() < 0.3:
        return chance.randbytes(chance.randint(0, 2_000))
    frames = [_PREFACE, _SETTINGS]
    for _ in range(chance.randint(0, 20)):
        length = chance.choice((0, 4, 8, 100))
        head = (
            length.to_bytes(3, "big")
            + bytes((chance.randint(0, 12), chance.getrandbits(8)))
            + chance.getrandbits(31).to_bytes(4, "big")
        )
        frames.append(head + chance.randbytes(length))
    return b"".join(frames)
