"""Waves of a rank group: every order in which what can happen to its ranks and their coordinator may happen.

What is said takes any time to arrive. Of three ranks everything is said as it becomes so; of two it is said at any time after that, or not
at all if something newer has become so by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import pytest

from specsplit.membership import WaveReport
from specsplit.ranks.wave import Wave
from specsplit_coordinator.members.group import Waves


class Rank(NamedTuple):
    """One rank, and what is on its way to it and from it."""

    wave: Wave
    wanted: bool = False
    """It has noticed that it is parked and holds a request."""
    requests: int = 0
    """That it holds and has not served."""
    coming: int = 0
    """That were placed on it and are on their way."""
    entered: int | None = None
    """It waits in an exchange, with so many requests in its step; None: it waits in none."""
    heard: bool | None = None
    """It has heard in that exchange whether any rank is unfinished, and has not gone on from there."""
    joined: bool = True
    """The coordinator has it for a member; what is on its way to one that it has not may arrive all the same."""
    up: tuple[WaveReport, ...] = ()
    down: tuple[int, ...] = ()
    said: WaveReport | None = None
    """The last report that was sent over the stream that it has now."""
    told: int = 0
    """The last wave that the coordinator has sent over that stream."""

    @property
    def stands(self) -> WaveReport:
        return WaveReport(self.wave.number, self.wave.parked, self.wanted)

    def noticing(self) -> Rank:
        """It notices whether it wants a wave."""
        return self._replace(wanted=self.wave.parked and self.requests > 0)

    def reporting(self) -> Rank:
        """It says where it stands, if that is new."""
        if not self.joined or self.stands == self.said:
            return self
        return self._replace(up=(*self.up, self.stands), said=self.stands)

    def directed(self, number: int) -> Rank:
        """It is told of a wave, if that is new."""
        if not self.joined or number == self.told:
            return self
        return self._replace(down=(*self.down, number), told=number)


class World(NamedTuple):
    ranks: tuple[Rank, ...]
    waves: Waves = Waves()
    arrivals: int = 0
    """Requests that may still reach a rank without the coordinator."""
    placements: int = 0
    """Requests that the coordinator may still place."""
    cancels: int = 0
    """Requests that may still be given up, on their way or later."""
    breaks: int = 0
    """How often a rank may still be taken for lost, since its stream breaks or it is silent."""
    looks: int = 0
    """How often a group that is not whole may still be woken since it has not been for long."""
    repeats: int = 0
    """How often the coordinator may still tell a rank of the wave once more."""
    restarts: int = 0
    """How often the coordinator may still be lost and come back without its memory."""
    late: bool = False
    """True: what has become so is said later."""

    def rank(self, number: int, **changes: object) -> World:
        ranks = list(self.ranks)
        ranks[number] = ranks[number]._replace(**changes)
        if not self.late:
            ranks[number] = ranks[number].noticing().reporting()
        return self._replace(ranks=tuple(ranks))

    def knowing(self, waves: Waves) -> World:
        """The coordinator knows this, and starts what may start."""
        waves = waves.started(whole=self.whole)
        ranks = self.ranks if self.late else (rank.directed(waves.number) for rank in self.ranks)
        return self._replace(waves=waves, ranks=tuple(ranks))

    @property
    def whole(self) -> bool:
        return all(rank.joined for rank in self.ranks)

    @property
    def quiet(self) -> bool:
        return all(rank.wave.parked and not rank.requests and rank.entered is None for rank in self.ranks)


def from_outside(world: World) -> Iterator[World]:
    for number, rank in enumerate(world.ranks):
        if world.arrivals:
            yield world.rank(number, requests=rank.requests + 1)._replace(arrivals=world.arrivals - 1)
        if world.placements and world.whole:
            placed = world.rank(number, coming=rank.coming + 1)._replace(placements=world.placements - 1)
            yield placed.knowing(world.waves.placed())
        if world.cancels:
            yield from cancelled(world._replace(cancels=world.cancels - 1), number, rank)
        if world.breaks and rank.joined:
            lost = broken(world, number)._replace(breaks=world.breaks - 1)
            yield lost.knowing(world.waves.lost(leaving=False) if world.whole else world.waves)
        if world.repeats and rank.joined and rank.told:
            yield world.rank(number, down=(*rank.down, rank.told))._replace(repeats=world.repeats - 1)
    if world.looks and not world.whole and any(rank.joined for rank in world.ranks):
        yield world._replace(looks=world.looks - 1).knowing(world.waves.lost(leaving=False))
    if world.restarts:
        again = world
        for number in range(len(world.ranks)):
            again = broken(again, number)
        yield again._replace(restarts=world.restarts - 1, waves=Waves())


def cancelled(world: World, number: int, rank: Rank) -> Iterator[World]:
    """One request less. In a step none ends."""
    if rank.coming:
        yield world.rank(number, coming=rank.coming - 1)
    if rank.requests and rank.entered is None:
        yield world.rank(number, requests=rank.requests - 1)


def broken(world: World, number: int) -> World:
    return world.rank(number, joined=False, up=(), said=None, told=0)


def from_inside(world: World) -> Iterator[World]:
    for number, rank in enumerate(world.ranks):
        if rank.coming:
            yield world.rank(number, coming=rank.coming - 1, requests=rank.requests + 1)
        yield from messages(world, number, rank)
        yield from steps(world, number, rank)
    if all(rank.entered is not None and rank.heard is None for rank in world.ranks):
        yield exchanged(world)


def messages(world: World, number: int, rank: Rank) -> Iterator[World]:
    """What is said between a rank and the coordinator; what one hears of an older stream ends with the next."""
    if not rank.joined:
        joined = world.rank(number, joined=True, down=())
        yield joined.knowing(joined.waves)
    elif world.late:
        for after in (rank.noticing(), rank.reporting(), rank.directed(world.waves.number)):
            if after != rank:
                yield world.rank(number, **after._asdict())
    if rank.up:
        heard = world.rank(number, up=rank.up[1:])
        yield heard.knowing(heard.waves.reported(rank.up[0]))


def steps(world: World, number: int, rank: Rank) -> Iterator[World]:
    """What a rank's own thread does; while it waits in an exchange, nothing."""
    if rank.entered is not None and rank.heard is not None:
        left, wave = rank.requests - rank.entered, rank.wave.end_turn(unfinished=rank.heard)
        yield world.rank(number, heard=None, entered=None, requests=left, wave=wave)
    elif rank.entered is None:
        if rank.down:
            yield world.rank(number, down=rank.down[1:], wave=rank.wave.start(rank.down[0]), wanted=False)
        if not rank.wave.parked:
            yield world.rank(number, entered=rank.requests)


def exchanged(world: World) -> World:
    assert len({rank.wave.number for rank in world.ranks}) == 1, "they are in the same wave"
    unfinished = any(rank.entered for rank in world.ranks)
    for number in range(len(world.ranks)):
        world = world.rank(number, heard=unfinished)
    return world


def explored(start: World) -> int:
    """See that every run without further events from outside ends, and ends with nothing left to do -> worlds seen."""
    inside: dict[World, list[World]] = {}
    left = [start]
    while left:
        world = left.pop()
        if world in inside:
            continue
        inside[world] = [begun_once(world, following) for following in from_inside(world)]
        left += inside[world]
        left += [begun_once(world, following) for following in from_outside(world)]
        assert inside[world] or world.quiet, f"stuck: {world}"
    assert ends(inside), "there is a run that never ends"
    return len(inside)


def begun_once(before: World, after: World) -> World:
    """See that no rank begins a wave twice, or one that it was not told of -> what follows; which rank is which does not matter there."""
    for old, new in zip(before.ranks, after.ranks, strict=True):
        begun = (old.wave.parked and not new.wave.parked) or old.wave.number != new.wave.number
        assert new.wave.number == old.wave.number + begun, "waves are begun one after the other"
        assert new.wave.number <= new.wave.announced, "none is begun that the coordinator has not told of"
    return after._replace(ranks=tuple(sorted(after.ranks, key=hash)))


def ends(inside: dict[World, list[World]]) -> bool:
    """True if no world comes back to itself."""
    into = dict.fromkeys(inside, 0)
    for following in chain.from_iterable(inside.values()):
        into[following] += 1
    free = [world for world, count in into.items() if not count]
    for world in free:  # grows meanwhile
        for following in inside[world]:
            into[following] -= 1
            if not into[following]:
                free.append(following)
    return len(free) == len(inside)


@pytest.mark.parametrize(
    ("ranks", "outside"),
    [
        (3, {"arrivals": 2}),
        (3, {"arrivals": 1, "placements": 1}),
        (3, {"arrivals": 1, "breaks": 1}),
        (3, {"arrivals": 1, "restarts": 1}),
        (2, {"arrivals": 2}),
        (2, {"arrivals": 1, "repeats": 1, "cancels": 1}),
        (2, {"placements": 1, "cancels": 1}),
        (2, {"arrivals": 1, "breaks": 1}),
        (2, {"breaks": 1, "looks": 1}),
        (2, {"arrivals": 1, "restarts": 1}),
    ],
    ids=str,
)
def test_in_no_order_of_events_is_a_request_stuck_or_a_rank_left_alone_in_an_exchange(
    ranks: int, outside: dict[str, int]
) -> None:
    world = World(tuple(Rank(Wave(park_after=1)) for _ in range(ranks)), late=ranks == 2)._replace(**outside)
    assert explored(world) > 100
