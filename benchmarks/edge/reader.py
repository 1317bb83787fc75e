"""Reads many streams of tokens at once, and tells how late they came and what processor time others took meanwhile.

`python -m benchmarks.edge.reader CALL ADDRESS STREAMS INTERVAL VERIFIERS SECONDS PID VERIFIER` asks for a step every INTERVAL seconds, made
by VERIFIERS in turn, each with its part of the streams, by a call of `benchmarks.edge.calls`, and writes a line of JSON. PID is the process
of who is asked, VERIFIER that of the verifier.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.edge import pace
from benchmarks.edge.processor import processor_s
from benchmarks.edge.streams import read
from benchmarks.spread import percentile

SETTLE_S: Final = 0.7
_LOOK_S: Final = 0.02


@dataclass(slots=True)
class Arrived:
    """What came while it was looked at."""

    messages: int = 0
    """A message of one stream: where one carries all sessions, an event."""
    late_s: list[float] = field(default_factory=list[float])
    """Of every token."""


class Reader:
    """Takes what comes on all streams."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self.begun: set[int] = set()
        """Streams that have had something."""
        self.arrived = Arrived()

    def heard(self, stream: int, numbers: Sequence[int]) -> None:
        """Note that the tokens of these steps have come."""
        if numbers:
            self.begun.add(stream)
            self.arrived.messages += 1
            self.arrived.late_s += [pace.late_s(number, self._every_s) for number in numbers]

    async def all_begun(self, streams: int) -> None:
        """Return when so many streams have had something."""
        while len(self.begun) < streams:
            await asyncio.sleep(_LOOK_S)


async def _measured(call: str, address: str, streams: int, prompt: str, seconds: float, pids: list[int]) -> None:
    reader = Reader(pace.asked(prompt)[0])
    reading = asyncio.create_task(read(call, address, streams, prompt, reader.heard))
    begun = asyncio.create_task(reader.all_begun(streams))
    await asyncio.wait([begun, reading], return_when=asyncio.FIRST_COMPLETED)
    if reading.done():
        sys.exit(f"a stream ended: {reading.exception()!r}")
    await asyncio.sleep(SETTLE_S)
    reader.arrived, began = Arrived(), time.perf_counter()
    before = [processor_s(pid) for pid in pids]
    await asyncio.sleep(seconds)
    arrived, taken_s = reader.arrived, time.perf_counter() - began
    used = [processor_s(pid) - earlier for pid, earlier in zip(pids, before, strict=True)]
    if reading.done():
        sys.exit(f"a stream ended: {reading.exception()!r}")
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    tokens = len(arrived.late_s)
    told = {
        "tokens_s": tokens / taken_s,
        "tokens_a_message": tokens / max(1, arrived.messages),
        **{name: each / max(1, tokens) * 1e6 for name, each in zip(("cpu_us", "verifier_us"), used, strict=True)},
        "late_p50_ms": percentile(arrived.late_s, 50) * 1e3,
        "late_p99_ms": percentile(arrived.late_s, 99) * 1e3,
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    _call, _address, _streams, _interval, _verifiers, _seconds, *_pids = sys.argv[1:]
    _prompt = pace.prompt_of(float(_interval), int(_verifiers))
    asyncio.run(_measured(_call, _address, int(_streams), _prompt, float(_seconds), [int(pid) for pid in _pids]))
