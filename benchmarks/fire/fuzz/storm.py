"""Hostile parties at work, many cases at once, with honest clients beside them."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from benchmarks.fire.ending import POLL_S, Ending
from benchmarks.fire.fuzz.case import Case
from benchmarks.fire.fuzz.corpus import Corpus
from benchmarks.fire.fuzz.ground import Ground
from benchmarks.fire.fuzz.honest import BOUND_S, Honest
from benchmarks.fire.fuzz.hostile_client import HostileClient
from benchmarks.fire.fuzz.hostile_coordinator import Answering, directing
from benchmarks.fire.fuzz.hostile_drafter import HostileDrafter
from benchmarks.fire.fuzz.hostile_stream import HostileStream
from benchmarks.fire.fuzz.hostile_verifier import HostileVerifier
from benchmarks.fire.fuzz.memory import Memory
from benchmarks.fire.fuzz.noise import Noise
from benchmarks.fire.fuzz.scene import Scene
from benchmarks.fire.fuzz.tally import Tally
from benchmarks.known import Known
from specsplit.cli.local import Child
from specsplit.client import AsyncClient
from specsplit.errors import SpecsplitError
from specsplit.membership import Cluster

AT_ONCE: Final = 24
"""Cases that are under way at once."""
HONEST: Final = 2
"""Honest clients."""
CASE_S: Final = 120.0
"""A case that is not over by then hangs."""
END_S: Final = 45.0
"""A case that is not over so long after the time is hangs. A call that nobody answers is given up after LISTENS_S and told by its case."""
REST_S: Final = 60.0
"""What is left over when all is over gets so long to go."""
_WEIGHTS: Final = {"client": 12, "stream": 5, "drafter": 3, "verifier": 1, "answers": 0.5, "noise": 0.5}
PARTIES: Final = (*_WEIGHTS, "coordinator")
"""Whose cases there are; a hostile coordinator's are drawn when a member joins it."""
_LAST_S: Final = BOUND_S + 5.0
"""Honest clients get so long for their last request."""
_TELL_S: Final = 5.0
_SAMPLE_S: Final = 1.0


class Party(Protocol):
    """A hostile party."""

    name: str

    async def act(self, case: Case) -> None:
        """Do what is drawn for this case, and tell the tally."""
        ...


@dataclass
class Storm:
    """One run of fuzzing."""

    ground: Ground
    children: Mapping[str, Child]
    seed: int
    say: Callable[[str], None]
    tally: Tally = field(default_factory=Tally)
    honest: Honest = field(default_factory=Honest)
    memory: Memory = field(default_factory=Memory)
    left: list[str] = field(default_factory=list[str])
    """A sentence on what was still there when all was over."""
    seconds: float = 0.0
    ending: Ending = field(default_factory=Ending)

    async def run(self, known: Sequence[Known], corpus: Corpus, seconds: float, only: Sequence[Case] = ()) -> None:
        """Let every party act for so long, or have these cases again, one after the other; until the run is told to end."""
        scene = Scene(self.ground, known, corpus, self.tally)
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(scene.close)
            first = next((case.number for case in only if case.party == "coordinator"), 0)
            await stack.enter_async_context(directing(scene, self.seed, first))
            async with self._served(scene, began + seconds):
                parties = _parties(scene)
                for case in itertools.takewhile(lambda _: not self.ending.by, only):
                    await self._act(parties.get(case.party), case)
                if not only:
                    await self._all(parties, began + seconds)
                self.seconds = time.monotonic() - began
        if self._well:
            await self._settle()

    @asynccontextmanager
    async def _served(self, scene: Scene, until: float) -> AsyncIterator[None]:
        """Inside it honest clients ask, and somebody watches; at its end what they have asked for has come, or hangs."""
        asking = [asyncio.create_task(each) for each in self._askers(scene)]
        watching = asyncio.create_task(self._watch(until))
        try:
            yield
            self.honest.enough.set()
            _, late = await asyncio.wait(asking, timeout=_LAST_S)
            self.honest.hung += [f"an honest client did not end within {_LAST_S:g} s" for _ in late]
        finally:
            for task in (*asking, watching):
                task.cancel()
            _raise_any(await asyncio.gather(*asking, watching, return_exceptions=True))

    @property
    def _well(self) -> bool:
        """True while every process runs."""
        return all(child.alive for child in self.children.values())

    async def _all(self, parties: Mapping[str, Party], until: float) -> None:
        """Draw case after case until the time is over, a process is, or the run is told to end."""
        order = random.Random(f"{self.seed} order")
        numbers = {name: itertools.count() for name in parties}

        async def worker() -> None:
            while time.monotonic() < self.ending.sooner(until) and self._well:
                name = order.choices([*parties], [_WEIGHTS[each] for each in parties])[0]
                await self._act(parties[name], Case(self.seed, name, next(numbers[name])))

        workers = [asyncio.create_task(worker()) for _ in range(AT_ONCE)]
        late = await self._late(workers, until)
        for case in [*self.tally.running]:
            self.tally.fault(case, f"was not over {END_S:g} s after the time was")
        for task in late:
            task.cancel()
        _raise_any(await asyncio.gather(*workers, return_exceptions=True))

    async def _late(self, workers: Sequence[asyncio.Task[None]], until: float) -> set[asyncio.Task[None]]:
        """The workers that are at work still END_S after the time was over."""
        late = set(workers)
        while late and time.monotonic() < self.ending.sooner(until) + END_S:
            _, late = await asyncio.wait(late, timeout=POLL_S)
        return late

    async def _act(self, party: Party | None, case: Case) -> None:
        if party is None:  # a hostile coordinator waits for its members
            await asyncio.sleep(5.0)
            return
        self.tally.running.add(case)
        self.tally.cases += 1
        try:
            async with asyncio.timeout(CASE_S):
                await party.act(case)
        except TimeoutError:
            self.tally.fault(case, f"was not over after {CASE_S:g} s")
        except Exception as error:  # noqa: BLE001 (one case that cannot be played must not end the others)
            self.tally.fault(case, f"raised {error!r} at {_place(error)}")
        finally:
            if not self._well:
                self.tally.suspect()
            self.tally.running.discard(case)

    def _askers(self, scene: Scene) -> list[Coroutine[None, None, None]]:
        drafters: list[str | None] = [None, "none", *(name for name in ("ngram", "eagle3") if name in self.children)]
        chances = [random.Random(f"{self.seed} honest {number}") for number in range(HONEST)]
        return [self.honest.ask(self.ground, scene.known, drafters, chance) for chance in chances]

    async def _watch(self, until: float) -> None:
        """Show progress and what is wrong, and sample memory."""
        told = set[str]()
        for tick in itertools.count():
            await asyncio.sleep(_SAMPLE_S)
            self.memory.look(self.children)
            for fault in [each for each in self._wrong if each not in told]:
                told.add(fault)
                self.say(fault)
            if tick % round(_TELL_S / _SAMPLE_S) == 0:
                self.say(self._told(max(0.0, self.ending.sooner(until) - time.monotonic())))

    @property
    def _wrong(self) -> list[str]:
        """A sentence on all that is wrong so far."""
        return [*self.tally.faults, *self.honest.failed, *self.honest.hung, *self.honest.different]

    def _told(self, left_s: float) -> str:
        return (
            f"{left_s:.0f} s left: {self.tally.sent:,} messages in {self.tally.cases:,} cases, "
            f"{len(self.honest.seconds):,} honest requests, {len(self._wrong)} faults"
        )

    async def _settle(self) -> None:
        """Wait until both clusters are at rest: no session, no page, no member that is not honest."""
        for address, expected in ((self.ground.public, 1 + len(self.ground.drafters)), (self.ground.lone, 0)):
            async with AsyncClient(address, self.ground.transport("honest")) as client:
                until, left = time.monotonic() + REST_S, "not asked"
                while left and time.monotonic() < until:
                    left = await _left(client, expected)
                    await asyncio.sleep(0.5)
                self.left += [f"{REST_S:g} s after the last message, {left}"] if left else []


def _place(error: Exception) -> str:
    """Where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"


def _raise_any(ended: Sequence[object]) -> None:
    """Raise what a task beside the cases ended with, if it was not cancelled."""
    for error in ended:
        if isinstance(error, Exception):
            raise error


def _parties(scene: Scene) -> dict[str, Party]:
    found: list[Party] = [
        HostileClient(scene), HostileStream(scene), HostileDrafter(scene), HostileVerifier(scene), Answering(scene), Noise(scene),
    ]  # fmt: skip
    return {party.name: party for party in found}


async def _left(client: AsyncClient, members: int) -> str:
    """What is there that should not be, or is not and should be; empty: nothing."""
    try:
        cluster: Cluster = await client.cluster(5)
    except SpecsplitError as error:
        return f"the coordinator did not answer: {error}"
    if cluster.queued or cluster.running:
        return f"{cluster.queued} requests were queued, and {cluster.running} running"
    if len(cluster.members) != members:
        return f"there were {len(cluster.members)} members in the place of {members}: {[each.member_id for each in cluster.members]}"
    busy = [
        f"{each.member_id} had {each.load.sessions} sessions and {each.load.free_pages} of {each.load.total_pages} pages"
        for each in cluster.members
        if each.load.sessions or each.load.free_pages != each.load.total_pages
    ]
    return "; ".join(busy)
