"""A drafter far away, over real processes: its loopback is delayed by 40 ms in each direction, eight steps of its verifier."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.delay_proxy import delayed
from specsplit.cli.local import LocalCluster
from specsplit.client import Client
from specsplit.values import DrafterReport, PlanChanges
from tests.support.ranks import free_port

from .conftest import PACED, SERIAL, eventually, letters

DELAY_S = 0.04
ROUNDS, TOKENS = 5, 100
LEAST = 0.75
"""Of the tokens/s without a drafter. With all else quiet it is 0.98 or more (docs/results/distance_loopback.md)."""
FREE = PlanChanges()


@pytest.fixture(scope="module")
def far(alphabet: Path, erring: Path) -> Iterator[LocalCluster]:
    """A verifier under the defaults, and a standalone drafter that its verifier reaches behind the delay alone."""
    listen = f"127.0.0.1:{free_port()}"
    with delayed(listen, DELAY_S) as proxy, LocalCluster(alphabet, erring, verifier=PACED) as cluster:
        cluster.spawn_drafter("standalone", listen=listen, advertise=proxy.address)
        cluster.wait_joined()
        yield cluster


def told(cluster: LocalCluster) -> DrafterReport | None:
    """What the verifier says of the drafter."""
    with cluster.client() as client:
        reports = [m.speculation for m in client.cluster().members if m.speculation is not None]
    return next((each for report in reports for each in report.drafters), None)


@pytest.mark.slow
def test_its_verifier_does_not_wait_for_it_and_texts_are_the_targets_own(far: LocalCluster) -> None:
    with far.client() as client:
        for start in "dmx":
            done = client.generate("abc" + start, max_tokens=200, ignore_eos=True)
            assert done.text == letters(start, 200)
        asked = {
            drafter: client.generate("abc", max_tokens=64, drafter=drafter, temperature=1.0, seed=7)
            for drafter in ("none", "standalone")
        }
    assert asked["none"].text == asked["standalone"].text
    eventually(lambda: (each := told(far)) is not None and each.round_trip_s > 0)
    report = told(far)
    assert report is not None and report.round_trip_s >= 2 * DELAY_S
    assert report.held_s < DELAY_S / 4, "steps that wait for every draft are held for two delays"


@pytest.mark.slow
def test_it_costs_no_time_though_one_whose_drafts_are_waited_for_would(far: LocalCluster) -> None:
    with far.client() as client:
        for _ in range(2):
            seconds(client, "standalone")  # what it brings is learnt
        assert share_of_none(client) >= LEAST
        assert share_of_none(client, SERIAL) < LEAST


def share_of_none(client: Client, plan: PlanChanges = FREE) -> float:
    """The tokens/s with the drafter beside those without one, by turns, the median."""
    return statistics.median(seconds(client, "none") / seconds(client, "standalone", plan) for _ in range(ROUNDS))


def seconds(client: Client, drafter: str, plan: PlanChanges = FREE) -> float:
    begun = time.perf_counter()
    done = client.generate("abc", max_tokens=TOKENS, ignore_eos=True, drafter=drafter, plan=plan)
    assert done.text == letters("c", TOKENS)
    return time.perf_counter() - begun
