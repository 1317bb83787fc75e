"""The soak: requests at random times, many of them as a wave ends, while ranks are killed and torchrun starts their group again."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from benchmarks.context import Context
from benchmarks.known import Known, known_texts
from benchmarks.leftover import left_over
from benchmarks.ports import free_ports
from benchmarks.ranks.arrivals import Asked, Burst, Kill, bursts, kills
from benchmarks.ranks.asking import HANG_S, Asking
from benchmarks.ranks.group import RankGroup, is_parked, is_whole
from benchmarks.ranks.tally import NEAR_PARK_S, Answered, Killed, Outcome, Tally
from benchmarks.ranks.wave_log import WaveLog, delays
from benchmarks.scrape import fetched, sum_of
from specsplit.cli.local import LocalCluster
from specsplit.client import AsyncClient
from specsplit.membership import Cluster

LONGEST = 48
"""Tokens of a known text."""
SETTLE_S = 30.0
"""At the end, when nothing runs any more, the group gets so long to park."""
QUIET_S = 2.0
"""A burst waits for the one before it to be over, but while ranks are gone for no longer than this."""
MOST_RUNNING = 12
EXPECTED_PARK_S = 0.1
"""From the last token to the end of a wave, until waves have shown it; later the median of the last `LATELY` of them."""
LATELY = 15
TELL_S = 15.0
MOST_RESTARTS = 1000
COLUMNS = {"what": "what", "count": "count"}


def soak(context: Context, ranks: int, minutes: float, seed: int) -> bool:
    """Run, print, write; True if nothing was wrong. The logs of the ranks stay."""
    logs = Path(tempfile.mkdtemp(prefix="ranks-"))
    context.console.print(f"logs of the ranks in {logs}", highlight=False)
    known = asyncio.run(known_texts(context.target, LONGEST))
    port = free_ports(1)
    coordinator = {"failover_s": 600.0, "metrics_listen": f"127.0.0.1:{port}"}
    told: dict[str, object] = {"log_level": "debug", "log_format": "json", "rank_timeout_s": 20.0}
    with (
        (logs / "coordinator.log").open("w", encoding="utf-8") as written,
        LocalCluster(
            context.target, verifiers=0, drafters=["ngram"], coordinator=coordinator,
            listener=lambda name, line: print(name, line, file=written, flush=True),
        ) as cluster,
        RankGroup(context.target, ranks, cluster.address, logs, restarts=MOST_RESTARTS, **told) as group,
    ):  # fmt: skip
        run = _Soak(group, WaveLog(logs), known, partial(context.console.print, highlight=False))
        asyncio.run(run.run(cluster.address, minutes * 60, seed))
        run.tally.failovers = sum_of(fetched(f"http://127.0.0.1:{port}/metrics"), "specsplit_session_failovers_total")
    _report(context, run.tally, {"ranks": ranks, "minutes": minutes, "seed": seed, "rank_timeout_s": 20})
    return run.tally.sound


class _Soak:
    """One run. Everything is on one event loop."""

    def __init__(self, group: RankGroup, log: WaveLog, known: list[Known], say: Callable[[str], object]) -> None:
        self.tally = Tally()
        self._group = group
        self._log = log
        self._known = known
        self._say = say
        self._running: set[asyncio.Task[None]] = set()
        self._ends = [time.time()]
        """When requests ended, in seconds since 1970."""

    async def run(self, address: str, seconds: float, seed: int) -> None:
        """Ask and kill for so long; then let everything come to its end."""
        async with AsyncClient(address) as client:
            killing = asyncio.create_task(self._kill_all(client, seed))
            telling = asyncio.create_task(self._tell(time.time() + seconds))
            until = time.time() + seconds
            for burst in bursts(seed, len(self._known), LONGEST):
                if killing.done() or time.time() > until:
                    break
                await self._begin(client, burst)
            if killing.done():
                killing.result()
            for task in (killing, telling):
                task.cancel()
            await asyncio.gather(*self._running)
            await self._settle(client)
        self.tally.waves, self.tally.parks = self._log.begun, sorted(self._log.parks)

    async def _begin(self, client: AsyncClient, burst: Burst) -> None:
        """One burst, once the one before it is over, or ranks are gone."""
        while self._running:
            await asyncio.wait(self._running, timeout=QUIET_S)
            if self._down:
                break
        while len(self._running) >= MOST_RUNNING:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        self._log.look()
        lately = delays(self._log.parks[-LATELY:], self._ends) or [EXPECTED_PARK_S]
        expected = self._ends[-1] + median(lately)
        begin = burst.pause_s + (expected if burst.near_end else self._ends[-1])
        for asked in burst.requests:
            await asyncio.sleep(max(0.0, begin + asked.after_s - time.time()))
            self.tally.met_end += abs(time.time() - expected) <= NEAR_PARK_S
            task = asyncio.create_task(self._ask(client, asked))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    @property
    def _down(self) -> bool:
        """True if a rank was killed and its group is not whole again."""
        return bool(self.tally.killed) and self.tally.killed[-1].whole_at is None

    async def _ask(self, client: AsyncClient, asked: Asked) -> None:
        """One request, and how it ended."""
        asking = Asking(self._known[asked.text], asked)
        outcome, why = await asking.outcome(client)
        self._ends.append(time.time())
        self.tally.answered.append(
            Answered(asking.sent, self._ends[-1], asking.first_s, outcome, len(asking.tokens), asking.refused, why)
        )
        if outcome is not Outcome.SAME:
            self._say(f"{outcome}: {asked}: {why}")
        if outcome is Outcome.HUNG:
            self._dump()

    async def _kill_all(self, client: AsyncClient, seed: int) -> None:
        """Kill ranks, each time once their group is whole, or while it is starting."""
        for several in kills(seed, self._group.size):
            await self._until_whole(client)
            for kill in several:
                await asyncio.sleep(kill.after_s)
                self._kill(kill, again=kill is not several[0])
            await asyncio.sleep(1.0)  # the coordinator notices

    def _kill(self, kill: Kill, *, again: bool) -> None:
        if kill.rank in self._group.pids:
            self.tally.killed.append(Killed(time.time(), kill.rank, len(self._running), again))
            self._group.signal(kill.rank, signal.SIGKILL)

    async def _until_whole(self, client: AsyncClient) -> None:
        while not is_whole((await client.cluster(30)).members, self._group.size):
            self._group.require_alive()
            await asyncio.sleep(0.25)
        for kill in self.tally.killed:
            kill.whole_at = kill.whole_at or time.time()

    async def _settle(self, client: AsyncClient) -> None:
        """What is left when all requests are over: nothing, and a group that is parked."""
        deadline = time.time() + HANG_S
        await self._until_whole(client)
        while left := _left(await client.cluster(30)):
            if time.time() > deadline:
                self.tally.left = f"when all requests were over, {left}"
                self._dump()
                return
            await asyncio.sleep(0.25)
        self._log.look()

    def _dump(self) -> None:
        """Have every rank write down where its threads are, which ends it."""
        for rank in self._group.pids:
            self._group.signal(rank, signal.SIGABRT)

    async def _tell(self, until: float) -> None:
        """Show progress."""
        while True:
            await asyncio.sleep(TELL_S)
            counts = ", ".join(f"{self.tally.count(outcome)} {outcome}" for outcome in Outcome)
            self._say(
                f"{until - time.time():.0f} s left: {counts}, {len(self._running)} running; "
                f"{len(self.tally.killed)} kills, {self._log.begun} waves"
            )


def _left(cluster: Cluster) -> str:
    """What is there that should not be when nobody asks for anything; empty: nothing."""
    return left_over(cluster) or ("" if is_parked(cluster.members) else "the group was not parked")


def _report(context: Context, tally: Tally, settings: dict[str, object]) -> None:
    def draw(figure: Figure) -> None:
        panel, began = figure.subplots(), min((each.sent for each in tally.answered), default=0.0)
        came = [(each.sent - began, each.first_token_s) for each in tally.answered if each.first_token_s is not None]
        panel.plot([sent for sent, _ in came], [first for _, first in came], ".")
        for kill in tally.killed:
            panel.axvline(kill.at - began, linestyle=":")
        panel.set_yscale("log")
        panel.set_xlabel("s; dotted: a rank was killed")
        panel.set_ylabel("time to the first token, s")

    verdict = "Nothing hung, nothing was lost, no text was different, nothing was left over."
    notes = [
        verdict if tally.sound else "Faults: " + "; ".join(tally.faults or ["nothing was asked"]),
        "4 ranks of one group (gloo, one machine), a coordinator with failover_s 600 and an n-gram drafter. Bursts of 1 to 6 requests of "
        f"1 to {LONGEST} tokens, greedy and at temperature 0.8 with a seed, drafted for and not. Half of the bursts begin within 30 ms of "
        "when the wave is expected to end, going by the last 15 waves; the others up to 2 s after the last request.",
        "A request that comes while no rank is there is told so (UNAVAILABLE), and its caller sends it again; one that had a place goes on "
        "by itself.",
        "A text is right if it is, token for token, what transformers writes (greedy), or a verifier alone with the same seed. Time to the "
        "first token away from kills: of requests that were over before a kill, or sent when the group was whole again.",
        f"Kills (rank, requests running, seconds until the group was whole): {'; '.join(map(_told, tally.killed))}.",
    ]
    context.finish(
        "ranks_soak", "Rank groups: kills, revivals and random arrivals", COLUMNS, tally.rows, settings, notes, draw
    )


def _told(kill: Killed) -> str:
    took = "not again" if kill.whole_at is None else f"{kill.whole_at - kill.at:.0f}"
    return f"{kill.rank}, {kill.running}, {took}"
