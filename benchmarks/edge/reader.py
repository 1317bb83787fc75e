"""Reads many streams of tokens at once, and tells how late they came and what processor time others took meanwhile.

`python -m benchmarks.edge.reader CALL ADDRESS STREAMS SECONDS PID...` calls Generate of a coordinator, or Decode of a verifier or of what
stands in front of one, and writes a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import grpc

from benchmarks.edge import pace
from benchmarks.edge.calls import GENERATE
from benchmarks.ranks.counters import Processor
from benchmarks.spread import percentile
from specsplit.requests import GenerateRequest, TokenPrompt
from specsplit.rpc.options import channel_options
from specsplit.sessions import DecodeRequest
from specsplit.settings import TransportSettings
from specsplit.v1 import coordinator_pb2, verifier_pb2
from specsplit.wire.coordinator import generate_to_wire
from specsplit.wire.verifier import decode_to_wire

PROMPT: Final = (5, 6, 7, 8)
SETTLE_S: Final = 1.0


@dataclass(slots=True)
class Arrived:
    """What came while it was looked at."""

    tokens: int = 0
    messages: int = 0
    late_s: list[float] = field(default_factory=list[float])
    """Of every token."""


class Reader:
    """So many streams of one call."""

    def __init__(self, channel: grpc.aio.Channel, call: str) -> None:
        self._tokens = _generated if call == GENERATE else _decoded
        self._call = channel.unary_stream(call)
        self._request = _request(call)
        self._begun = 0
        self.arrived = Arrived()

    async def read(self) -> None:
        """Read one stream until it is cancelled."""
        first = True
        async for message in self._call(self._request):
            self._begun, first = self._begun + first, False
            self.arrived.messages += 1
            for token in self._tokens(message):
                self.arrived.tokens += 1
                self.arrived.late_s.append(pace.late_s(token))

    async def begun(self, streams: int) -> None:
        """Return when so many streams have had something."""
        while self._begun < streams:
            await asyncio.sleep(pace.INTERVAL_S)


def _request(call: str) -> bytes:
    if call == GENERATE:
        return generate_to_wire(GenerateRequest(TokenPrompt(PROMPT))).SerializeToString()
    return decode_to_wire(DecodeRequest("", PROMPT)).SerializeToString()


def _generated(message: bytes) -> Iterator[int]:
    event = coordinator_pb2.GenerateResponse.FromString(message)
    for delta in (*event.earlier, event.delta):
        yield from delta.token_ids


def _decoded(message: bytes) -> Iterator[int]:
    event = verifier_pb2.DecodeResponse.FromString(message)
    for tokens in (*event.earlier, event.tokens):
        yield from tokens.token_ids


async def _main(call: str, address: str, streams: int, seconds: float, pids: list[int]) -> None:
    async with grpc.aio.insecure_channel(address, options=channel_options(TransportSettings())) as channel:
        reader = Reader(channel, call)
        reading = [asyncio.create_task(reader.read()) for _ in range(streams)]
        begun = asyncio.create_task(reader.begun(streams))
        await asyncio.wait([begun, *reading], return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            sys.exit(f"a stream ended: {next(each.exception() for each in reading if each.done())}")
        await asyncio.sleep(SETTLE_S)
        reader.arrived, began = Arrived(), time.perf_counter()
        before = [Processor.of([pid]).seconds for pid in pids]
        await asyncio.sleep(seconds)
        arrived, taken_s = reader.arrived, time.perf_counter() - began
        used = [Processor.of([pid]).seconds - earlier for pid, earlier in zip(pids, before, strict=True)]
        for each in reading:
            each.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    told = {
        "tokens_s": arrived.tokens / taken_s,
        "tokens_a_message": arrived.tokens / max(1, arrived.messages),
        "cpu_us": [each / max(1, arrived.tokens) * 1e6 for each in used],
        "late_p50_ms": percentile(arrived.late_s, 50) * 1e3,
        "late_p99_ms": percentile(arrived.late_s, 99) * 1e3,
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(
        _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), [int(pid) for pid in sys.argv[5:]])
    )
