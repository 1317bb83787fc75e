"""Sessions follow the better drafter, over real processes: one is slow, one joins late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from specsplit.cli.local import LocalCluster
from specsplit.client import Result
from specsplit.values import DrafterReport, PlanChanges
from specsplit_coordinator.cluster.drafter_placement import EXPLORE_EVERY
from tests.support.scrape import Places

from .conftest import PACED, as_soon_as, eventually, letters

SLOWLY = PlanChanges(num_steps=1, num_draft_tokens=2)
DEFAULT = PlanChanges()
SLOW = {"paced_expansion_base_ms": 300.0}
"""An expansion takes as long as many steps."""
SHORT, MORE = 16, 30
"""Tokens of a session: the fewer are enough to tell a drafter that brings next to nothing."""


@pytest.fixture(scope="module")
def places() -> Places:
    return Places()


@pytest.fixture(scope="module")
def cluster(alphabet: Path, erring: Path, places: Places) -> Iterator[LocalCluster]:
    verifier = PACED | {"paced_step_base_ms": 50.0, "metrics_listen": "127.0.0.1:0", "drafter_lost_after_s": 10.0}
    with LocalCluster(alphabet, erring, drafters=["standalone"], verifier=verifier, listener=places.hear) as started:
        yield started


def ask(cluster: LocalCluster, max_tokens: int, plan: PlanChanges = DEFAULT) -> Result:
    with cluster.client() as client:
        return client.generate("abc", max_tokens=max_tokens, ignore_eos=True, drafter="standalone", plan=plan)


def seen(cluster: LocalCluster) -> dict[str, DrafterReport]:
    with cluster.client() as client:
        told = [member.speculation for member in client.cluster().members if member.speculation is not None]
    return {each.member_id: each for report in told for each in report.whole_drafters}


@contextmanager
def running(cluster: LocalCluster, count: int) -> Iterator[list[Future[Result]]]:
    """So many sessions at once, that take long."""
    with ThreadPoolExecutor(count) as pool:
        yield [pool.submit(ask, cluster, 480, SLOWLY) for _ in range(count)]


@pytest.mark.slow
def test_running_sessions_are_handed_over_to_a_drafter_that_joins_late_and_say_the_same(
    cluster: LocalCluster, places: Places
) -> None:
    with running(cluster, 6) as asked:
        as_soon_as(lambda: seen(cluster).get("standalone-0", DrafterReport("")).sessions == 6)
        late = cluster.spawn_drafter("standalone")
        cluster.wait_joined()
        as_soon_as(lambda: seen(cluster).get(late.name, DrafterReport("")).sessions >= 1, 30)
    for each in asked:
        assert each.result().text == letters("c", 480)
    scraped = places.scraped("verifier-0")
    assert scraped("specsplit_hand_overs_total") >= 1
    assert scraped("specsplit_failovers_total") == scraped("specsplit_drafters_lost_total") == 0


@pytest.mark.slow
def test_new_sessions_go_to_the_drafter_that_brings_more(cluster: LocalCluster) -> None:
    slow = cluster.spawn_drafter("standalone", **SLOW)
    cluster.wait_joined()
    asked = (ask(cluster, SHORT).done.drafter for _ in range(EXPLORE_EVERY))
    assert slow.name in asked, "it has no record yet, so it is tried, if only to see what it brings"

    def known_to_be_slow() -> bool:
        ask(cluster, SHORT)  # on a busy machine the first one may not tell enough, and nobody else asks
        told = seen(cluster)
        quick = max(each.accepted for name, each in told.items() if name != slow.name)
        return slow.name in told and told[slow.name].steps > 0 and told[slow.name].accepted < quick - 0.5

    eventually(known_to_be_slow)  # for longer than the coordinator leaves between two looks at what is told
    chosen: Counter[str] = Counter(ask(cluster, MORE).done.drafter for _ in range(8))
    assert chosen[slow.name] <= 2, chosen
