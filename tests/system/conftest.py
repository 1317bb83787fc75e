"""Whole clusters of real processes on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specsplit.cli.local import LocalCluster
from specsplit.membership import Cluster
from specsplit.values import PlanChanges
from tests.support.toys import alphabet_target

# Steps of 5 ms, as on a real accelerator, give the drafter the time to be ahead, whatever this machine is doing.
PACED = {"paced_step_base_ms": 5.0, "drafter_lost_after_s": 1.0}
WAITING = PlanChanges(draft_ahead=False, wait_budget_us=500_000)
"""Steps wait for their drafts, so that what is accepted is no matter of how busy this machine is."""
SERIAL = PlanChanges(num_steps=5, topk=4, num_draft_tokens=16, draft_ahead=False, wait_budget_us=2_000_000)
"""Every step has a full tree, however busy the machine: some drafts must be accepted. It is the tree of the default settings. Where a
request leaves its size open it is as deep as goodput allows, and a drafter takes six times as long to fill it.
"""
ERRING = {"m": "x"}


@pytest.fixture(scope="module", autouse=True)
def all_forked(forked: None) -> None:
    """Every service of these clusters is forked."""


@pytest.fixture(scope="session")
def alphabet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the alphabet target."""
    return alphabet_target(tmp_path_factory.mktemp("alphabet"))


@pytest.fixture(scope="session")
def erring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a draft that knows the alphabet but for what follows `m`."""
    return alphabet_target(tmp_path_factory.mktemp("erring"), wrong=ERRING)


@pytest.fixture(scope="module")
def trio(alphabet: Path, erring: Path) -> Iterator[LocalCluster]:
    """Coordinator, verifier, and a standalone and an ngram drafter, shared by tests that leave it as they found it."""
    with LocalCluster(alphabet, erring, drafters=["standalone", "ngram"], verifier=PACED) as cluster:
        yield cluster


def letters(start: str, count: int) -> str:
    """The `count` letters that follow `start` in the circle of the alphabet."""
    first = ord(start) - ord("a") + 1
    return "".join(chr(ord("a") + (first + i) % 26) for i in range(count))


READS, OVER_S, EVERY_S = 3, 1.3, 0.05
"""Members report every 500 ms, so what one read shows may be as old: it has to hold for longer than two reports are apart."""


def as_soon_as(what: Callable[[], bool], within_s: float = 60.0) -> None:
    """Return once `what()` holds; fail if it does not within `within_s`.

    For what an old report cannot show: who is a member, which the coordinator knows by itself, and what has come of an order.
    """
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(EVERY_S)


def eventually(what: Callable[[], bool], within_s: float = 60.0) -> None:
    """Return once `what()` holds in three reads running over more than 1.2 s; fail if it does not come to that within `within_s`.

    For what has to stay so, and what may have been so before: that nobody holds a session. An old report may show that too early.
    """
    deadline = time.monotonic() + within_s
    held = 0
    while held < READS:
        held = held + 1 if what() else 0
        assert time.monotonic() < deadline, f"not within {within_s} s"
        if held < READS:
            time.sleep(OVER_S / (READS - 1) if held else EVERY_S)


def empty(cluster: Cluster) -> bool:
    """True if nobody holds a session or a page."""
    return cluster.running == cluster.queued == 0 and all(
        member.load.sessions == 0 and member.load.free_pages == member.load.total_pages for member in cluster.members
    )
