"""A verifier that drafts by lookup: real processes, a target whose output can be worked out by hand, and no drafter at first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specsplit.cli.local import LocalCluster
from specsplit.errors import Unavailable
from tests.support.scrape import Places
from tests.system.conftest import WAITING, eventually, letters

REPEATED = "abcdefghijklmnopqrstuvwxyzab"


@pytest.fixture(scope="module")
def places() -> Places:
    """Where the processes of the cluster serve their metrics."""
    return Places()


@pytest.fixture(scope="module")
def cluster(alphabet: Path, places: Places) -> Iterator[LocalCluster]:
    """A coordinator and a verifier."""
    settings = {"lookup": True, "metrics_listen": "127.0.0.1:0"}
    with LocalCluster(alphabet, drafters=[], verifier=settings, listener=places.hear) as started:
        yield started


def test_a_text_that_repeats_itself_takes_few_steps_with_no_drafter_in_the_cluster(
    cluster: LocalCluster, places: Places
) -> None:
    with cluster.client() as client:
        looked_up = client.generate(REPEATED, max_tokens=52)
        asked = client.generate(REPEATED, max_tokens=52, drafter="ngram")
        alone = client.generate(REPEATED, max_tokens=52, drafter="none")
        with pytest.raises(Unavailable, match="no eagle3 drafter"):
            client.generate(REPEATED, max_tokens=52, drafter="eagle3")
    assert asked.text == looked_up.text and asked.speculation.accepted > 26 and asked.done.drafter == ""
    assert looked_up.text == alone.text == letters("b", 52)
    assert looked_up.done.drafter == ""
    assert alone.speculation.steps == 52 and alone.speculation.drafted == 0
    assert looked_up.speculation.steps < 26 and looked_up.speculation.accepted == 52 - looked_up.speculation.steps
    accepted = places.scraped(cluster.verifiers[0].name)("specsplit_accepted_tokens_total")
    assert accepted == looked_up.speculation.accepted + asked.speculation.accepted


def test_a_drafter_that_joins_serves_sessions_and_lookup_is_back_when_it_has_gone(cluster: LocalCluster) -> None:
    drafter = cluster.spawn_drafter("ngram")
    cluster.wait_joined()
    with cluster.client() as client:
        served = client.generate(REPEATED, max_tokens=26, plan=WAITING)
        assert served.done.drafter == drafter.name
        assert served.text == letters("b", 26) and served.speculation.accepted > 0
        drafter.terminate()
        assert drafter.wait(30) == 0
        eventually(lambda: client.generate(REPEATED, max_tokens=4).done.drafter == "")
        again = client.generate(REPEATED, max_tokens=26)
    assert again.text == letters("b", 26) and again.speculation.accepted > 0
