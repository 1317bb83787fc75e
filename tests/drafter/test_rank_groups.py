"""Ranks of a drafter group over a mesh of threads, with real engines, and the coordinator's own machine for its waves."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from specsplit.clock import SystemClock
from specsplit.draft_events import Close
from specsplit.errors import SpecsplitError
from specsplit.membership import GroupRank
from specsplit.ranks.lockstep import Lockstep
from specsplit.ranks.wave import PARK_AFTER
from specsplit.speculation import Commit, Grow
from specsplit.values import Plan
from specsplit_coordinator.members.group import Group
from specsplit_drafter.drafts.group_forwards import GroupForwards
from specsplit_drafter.drafts.record import Cycle
from specsplit_drafter.engine.engine import Engine
from specsplit_drafter.engine.session_table import Outgoing
from specsplit_drafter.kinds.model_proposer import ModelProposer
from tests.drafter.group_toys import model_of
from tests.drafter.head_toys import VOCABULARY
from tests.drafter.toys import open_event, table_of
from tests.support.meshes import ThreadMesh, mesh_of

PLAN = Plan(num_steps=2, num_draft_tokens=4)
WAIT_S = 60.0


@dataclass
class Outbox:
    """What an engine has said, in order."""

    grows: queue.SimpleQueue[Grow] = field(default_factory=queue.SimpleQueue[Grow])
    refusals: queue.SimpleQueue[SpecsplitError] = field(default_factory=queue.SimpleQueue[SpecsplitError])
    cycles: list[Cycle] = field(default_factory=list[Cycle])

    def deliver(self, outgoing: Outgoing, cycle: Cycle | None) -> None:
        for events in outgoing.values():
            for _, event in events:
                match event:
                    case Grow():
                        self.grows.put(event)
                    case SpecsplitError():
                        self.refusals.put(event)
                    case _:
                        raise AssertionError(event)
        if cycle is not None:
            self.cycles.append(cycle)


class Rank:
    """One engine of a group, and its verifier's stream."""

    def __init__(self, proposer: ModelProposer) -> None:
        self.outbox, self.failed = Outbox(), threading.Event()
        self.engine = Engine(table_of(proposer, survival=0.1), SystemClock(), self.outbox, self.failed.set)
        self.stream = self.engine.open_stream()

    @property
    def parked(self) -> bool:
        assert self.engine.rank is not None
        return self.engine.rank.report.parked

    def open(self, *tokens: int, session: int = 1) -> None:
        self.engine.receive(self.stream, [(session, open_event(tokens, vocabulary=VOCABULARY, plan=PLAN))])

    def commit(self, number: int, token: int) -> None:
        self.engine.receive(self.stream, [(1, Commit(number, 0, (token,)))])

    def close(self, session: int = 1) -> None:
        self.engine.receive(self.stream, [(session, Close())])

    def grown(self) -> list[tuple[int, int]]:
        """Parents and tokens of all that it grows until it rests."""
        nodes: list[tuple[int, int]] = []
        while True:
            grow = self.outbox.grows.get(timeout=WAIT_S)
            nodes += zip(grow.parents, grow.tokens, strict=True)
            if grow.resting:
                return sorted(nodes)


@dataclass
class Ranks:
    """A group in this process, and what stands for its coordinator."""

    ranks: list[Rank]
    meshes: list[ThreadMesh]
    group: Group
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __getitem__(self, number: int) -> Rank:
        return self.ranks[number]

    def connect(self) -> None:
        self.group.subscribe(self.begin)
        for number, rank in enumerate(self.ranks):
            self.group.join(GroupRank("g", number, len(self.ranks)))
            assert rank.engine.rank is not None
            rank.engine.rank.on_report = lambda number=number, rank=rank: self.heard(number, rank)

    def begin(self) -> None:
        for rank in self.ranks:
            rank.engine.begin_wave(self.group.wave)

    def heard(self, number: int, rank: Rank) -> None:
        assert rank.engine.rank is not None
        with self.lock:
            self.group.on_report(number, rank.engine.rank.report)

    def parked(self) -> None:
        eventually(lambda: all(rank.parked for rank in self.ranks))


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


@contextmanager
def ranks_over(size: int, fault: Callable[[int, ModelProposer], None] = lambda _, __: None) -> Iterator[Ranks]:
    """A group that is parked, and parked again in the end unless it has failed."""
    meshes, clock = mesh_of(size), SystemClock()
    makes = [model_of("standalone", mesh) for mesh in meshes]

    def proposer(number: int) -> ModelProposer:
        with meshes[number].dying():
            model = makes[number]()
            return ModelProposer(model, 4, group=GroupForwards(model, Lockstep(meshes[number], clock, drawn=7), clock))

    with ThreadPoolExecutor(size) as threads:
        proposers = list(threads.map(proposer, range(size)))
    for number, each in enumerate(proposers):
        fault(number, each)
    ranks = Ranks([Rank(each) for each in proposers], meshes, Group(size))
    ranks.connect()
    for rank in ranks.ranks:
        rank.engine.start()
    try:
        yield ranks
        if not ranks[0].failed.is_set():
            ranks.parked()
    finally:
        for rank in ranks.ranks:
            rank.engine.stop()


def test_sessions_on_any_rank_are_drafted_for_while_others_idle_and_the_group_parks_between_them() -> None:
    with ranks_over(3) as ranks:
        for wave, number in enumerate((1, 0, 2), 1):
            ranks[number].open(5, 7, 9)
            first = ranks[number].grown()
            ranks[number].commit(1, 11)
            assert first and ranks[number].grown()
            ranks[number].close()
            ranks.parked()
            assert ranks.group.wave == wave
        before = [mesh.exchanges for mesh in ranks.meshes]
        time.sleep(0.2)
        assert [mesh.exchanges for mesh in ranks.meshes] == before, "a parked group exchanges nothing"
        assert len(set(before)) == 1 and before[0] > 3 * PARK_AFTER
        ran = [turn for rank in ranks.ranks for told in rank.outbox.cycles for turn in told.turns]
        assert {turn.costs.wave for turn in ran} == {1, 2, 3}
        assert sum(turn.idle for turn in ran) == 2 * sum(not turn.idle for turn in ran), "one is busy, two are idle"
        assert sum(turn.costs.woke_s is not None for turn in ran) == 3


def test_two_busy_ranks_draft_beside_each_other() -> None:
    with ranks_over(2) as ranks:
        for rank in ranks.ranks:
            rank.open(5, 7, 9)
        assert all(rank.grown() for rank in ranks.ranks)
        for number in range(1, 6):
            for rank in ranks.ranks:
                rank.commit(number, 3 + number)
            assert all(rank.grown() for rank in ranks.ranks)
        for rank in ranks.ranks:
            rank.close()


def test_a_session_that_fails_on_one_rank_ends_alone_and_no_rank_waits_for_another() -> None:
    def fault(number: int, proposer: ModelProposer) -> None:
        def fail(_: object, args: object, kwargs: dict[str, Any]) -> None:
            if bool((kwargs["input_ids"] == 31).any()):
                raise torch.OutOfMemoryError("none left for this one")

        if number == 0:
            model: Any = proposer
            model._model._model.model.register_forward_pre_hook(fail, with_kwargs=True)

    with ranks_over(2, fault) as ranks:
        ranks[0].open(5, 7, 31)
        refused = ranks[0].outbox.refusals.get(timeout=WAIT_S)
        assert "none left for this one" in str(refused)
        for rank in ranks.ranks:
            rank.open(5, 7, 9, session=2)
        assert all(rank.grown() for rank in ranks.ranks)
        for rank in ranks.ranks:
            rank.close(2)


def test_a_rank_that_dies_ends_every_rank() -> None:
    with ranks_over(3) as ranks:
        ranks[0].open(5, 7, 9)
        assert ranks[0].grown()
        ranks.meshes[2].die()
        assert all(rank.failed.wait(WAIT_S) for rank in ranks.ranks)


def test_a_rank_that_drains_stays_until_no_other_has_a_session() -> None:
    with ranks_over(2) as ranks:
        ranks[0].open(5, 7, 9)
        assert ranks[0].grown()
        idle, leaving = threading.Event(), ranks[1].engine.rank
        ranks[1].engine.drain(idle.set)
        assert idle.wait(WAIT_S) and leaving is not None and not leaving.may_leave
        ranks[0].commit(1, 11)
        assert ranks[0].grown() and not leaving.may_leave
        ranks[0].close()
        eventually(lambda: leaving.may_leave)
