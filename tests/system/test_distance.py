"""A drafter far away, over real processes: its loopback is delayed by 40 ms in each direction, eight steps of its verifier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.delay_proxy import delayed
from specsplit.cli.local import LocalCluster
from specsplit.values import DrafterReport
from tests.support.ranks import free_port

from .conftest import PACED, eventually, letters

DELAY_S = 0.04


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
