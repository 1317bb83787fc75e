"""Hostile parties at work, many cases at once."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.fire.ending import POLL_S, Ending
from benchmarks.fire.fuzz.draws import COORDINATOR, WEIGHTS, Case
from benchmarks.fire.fuzz.parties import PARTIES, Directing, Scene
from benchmarks.fire.fuzz.peer import serving

AT_ONCE: Final = 24
"""Cases that are under way at once."""
CASE_S: Final = 120.0
"""A case that is not over by then hangs."""
END_S: Final = 45.0
"""A case that is not over so long after the time is hangs. A call that nobody answers is given up after LISTENS_S and told by its case."""


class Storm:
    """One run of fuzzing."""

    def __init__(self, scene: Scene, seed: int, ending: Ending) -> None:
        self._scene = scene
        self._seed = seed
        self._ending = ending

    @property
    def well(self) -> bool:
        """True while every process runs."""
        return all(child.alive for child in self._scene.ground.children.values())

    async def run(self, seconds: float, only: Sequence[Case] = ()) -> None:
        """Let every party act for so long, or have these cases again, one after the other; until the run is told to end."""
        began, scene = time.monotonic(), self._scene
        first = next((case.number for case in only if case.party == COORDINATOR), 0)
        try:
            async with serving(Directing(scene, self._seed, first), scene.ground.hostile):
                for case in itertools.takewhile(lambda _: not self._ending.by, only):
                    await self._act(case)
                if not only:
                    await self._all(began + seconds)
        finally:
            await scene.close()

    async def _all(self, until: float) -> None:
        """Draw case after case until the time is over, a process is, or the run is told to end."""
        order = random.Random(f"{self._seed} order")
        numbers = {name: itertools.count() for name in PARTIES}

        async def worker() -> None:
            while time.monotonic() < self._ending.sooner(until) and self.well:
                name = order.choices([*PARTIES], [WEIGHTS[each] for each in PARTIES])[0]
                await self._act(Case(self._seed, name, next(numbers[name])))

        workers = {asyncio.create_task(worker()) for _ in range(AT_ONCE)}
        late = workers
        while late and time.monotonic() < self._ending.sooner(until) + END_S:
            _, late = await asyncio.wait(late, timeout=POLL_S)
        for case in [*self._scene.tally.running]:
            self._scene.tally.fault(case, f"was not over {END_S:g} s after the time was")
        for task in late:
            task.cancel()
        for ended in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def _act(self, case: Case) -> None:
        tally = self._scene.tally
        if case.party == COORDINATOR:  # it waits for its members
            await asyncio.sleep(5.0)
            return
        tally.running.add(case)
        tally.cases += 1
        try:
            async with asyncio.timeout(CASE_S):
                await PARTIES[case.party](self._scene, case)
        except TimeoutError:
            tally.fault(case, f"was not over after {CASE_S:g} s")
        except Exception as error:  # noqa: BLE001 (one case that cannot be played must not end the others)
            last = traceback.extract_tb(error.__traceback__)[-1]
            tally.fault(case, f"raised {error!r} at {Path(last.filename).name}, line {last.lineno}")
        finally:
            if not self.well:
                tally.suspect()
            tally.running.discard(case)
