"""Which expansions are used: the worked example committed, and what follows for sessions that share their verifier's cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specsplit.speculation import Commit
from specsplit.tree import ROOT
from specsplit.values import Host
from specsplit_drafter.engine.session_table import SessionTable
from specsplit_drafter.growth.usage import MOST_REMEMBERED, Usage
from tests.drafter.toys import CAT, SAT, THE, Distribution, TableProposer, open_event, table_of

AHEAD: Distribution = {SAT: 0.7}
"""What follows every token."""
ONE_CORE = Host("m", Host.ranges({0}), 1)
ANOTHER = replace(ONE_CORE, machine="n")


def opened(*hosts: Host) -> SessionTable:
    """Sessions of verifiers on these hosts, at a drafter on the one core, after all are told what was drawn from their roots."""
    table = table_of(TableProposer(lambda _: AHEAD), host=ONE_CORE)
    for number, host in enumerate(hosts, 1):
        table.handle((number, 1), replace(open_event([THE, CAT]), host=host, step_us=20_000))
    assert table.expand() == len(hosts)
    return table


def counted(table: SessionTable) -> tuple[int, int]:
    return table.counts.usage.drawn, table.counts.usage.used


def test_an_expansion_is_used_once_a_node_that_it_brought_is_committed() -> None:
    table = opened(ANOTHER)
    assert table.expand() and table.expand()
    assert counted(table) == (3, 0)
    sat = table.growth_of((1, 1)).original.tree.children(np.array([ROOT]), np.array([SAT]))
    table.handle((1, 1), Commit(1, table.growth_of((1, 1)).original.tree.ids[int(sat[0])], (SAT, SAT)))
    assert counted(table) == (3, 2), "of the root, and of the node that became the root's child"
    assert table.expand()
    table.handle((1, 1), Commit(2, 0, (THE,)))
    assert counted(table) == (4, 2), "the pick was no node"


def test_an_expansion_of_two_sessions_is_used_by_either_of_them_and_counts_once() -> None:
    table = opened(ANOTHER, ANOTHER)
    for stream in (1, 2):
        table.handle((stream, 1), Commit(1, 0, (SAT,)))
    assert counted(table) == (1, 1)


def depth_of(table: SessionTable, stream: int = 1) -> int:
    """Expand until all rest -> the depth of what is there."""
    table.expansion_cost.observe(0.002)
    while table.expand():
        table.expansion_cost.observe(0.002)
    tree = table.growth_of((stream, 1)).original.tree
    return int(tree.positions.max()) - tree.root_position


def test_a_drafter_that_takes_its_verifiers_core_stops_where_waiting_does_better() -> None:
    """Chains of 0.7: the second level is drawn at 0.7, and the third at 0.49 is not; other verifiers get all levels."""
    assert depth_of(opened(ONE_CORE)) == 2
    assert depth_of(opened(ANOTHER)) > 4
    assert depth_of(opened(Host())) > 4, "a verifier that does not tell has cores of its own"


def test_each_verifier_has_its_own_price() -> None:
    table = opened(ONE_CORE, ANOTHER)
    assert depth_of(table, stream=2) > 4


@pytest.mark.parametrize("number", [1, MOST_REMEMBERED * 2])
def test_what_is_remembered_of_expansions_is_bounded(number: int) -> None:
    usage = Usage()
    for _ in range(number):
        usage.begin()
        usage.use(int(usage.draw(np.array([3]), np.array([0.5]))[0]))
    assert (usage.drawn, usage.used) == (number, number)
    assert usage.ratio == 1.0
    usage.use(1)  # long ago, or used already
    assert usage.used == number
