"""What every hostile party is given: where to find its victims, what honest parties said, and where to tell what came of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
from google.protobuf.descriptor import Descriptor

from benchmarks.fire.fuzz.corpus import Corpus
from benchmarks.fire.fuzz.generated import Generator
from benchmarks.fire.fuzz.ground import Ground
from benchmarks.fire.fuzz.mutated import Mutator
from benchmarks.fire.fuzz.servers import UNBOUNDED
from benchmarks.fire.fuzz.tally import Tally
from benchmarks.known import Known


@dataclass(frozen=True)
class Scene:
    """What the hostile parties of one run share."""

    ground: Ground
    known: Sequence[Known]
    corpus: Corpus
    tally: Tally
    _channels: dict[str, grpc.aio.Channel] = field(default_factory=dict[str, grpc.aio.Channel])

    def channel(self, address: str) -> grpc.aio.Channel:
        """A connection that hostile callers of this address share."""
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=UNBOUNDED)
        return self._channels[address]

    async def close(self) -> None:
        """Close every channel."""
        for channel in self._channels.values():
            await channel.close()


@dataclass(frozen=True)
class Spite:
    """What a party does to the messages of one case, from one source of chance."""

    chance: random.Random
    generator: Generator
    mutator: Mutator

    @classmethod
    def of(cls, chance: random.Random, most: int = 2_000) -> Spite:
        """`most` is how many entries a message has at most, as a rule."""
        generator = Generator(chance, most)
        return cls(chance, generator, Mutator(chance, generator))

    def message(
        self, honest: bytes | None, kind: Descriptor, *, broken: float = 0.1, made: float = 0.2, kept: float = 0.2
    ) -> bytes:
        """A message in the place of an honest one, or of none: spoiled in its bytes, generated, as it was, or else with fields changed.

        `broken`, `made` and `kept` are the shares of the first three.
        """
        drawn = self.chance.random()
        if honest is None or drawn < made:
            data = self.generator.encoded(kind)
            return self.mutator.spoiled(data) if self.chance.random() < broken else data
        if drawn < made + broken:
            return self.mutator.spoiled(honest)
        if drawn < made + broken + kept:
            return honest
        return self.mutator.changed(honest, kind)
