"""A session goes on with another kind of drafter if that brings more to its kind of text, over real processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from specsplit.cli.local import LocalCluster
from specsplit.client import Result
from specsplit.values import DrafterReport
from tests.support.scrape import Places

from .conftest import PACED, as_soon_as

RANDOM = 100.0
"""A temperature at which the alphabet's target says just anything: a draft with the same noise guesses it, an n-gram does not."""


def ask(cluster: LocalCluster, wish: str | None = None) -> Result:
    with cluster.client() as client:
        return client.generate("abc", max_tokens=300, ignore_eos=True, drafter=wish, temperature=RANDOM, seed=7)


def seen(cluster: LocalCluster, drafter: str) -> DrafterReport:
    """What is told of it and sampled sessions."""
    with cluster.client() as client:
        told = [member.speculation for member in client.cluster().members if member.speculation is not None]
    found = (each for report in told for each in report.drafters if each.member_id == drafter and each.sampled)
    return next(found, DrafterReport(drafter))


def test_sampled_sessions_are_handed_over_from_ngram_to_standalone_unless_their_callers_asked_for_ngram(
    alphabet: Path, erring: Path
) -> None:
    places = Places()
    verifier = PACED | {"paced_step_base_ms": 50.0, "metrics_listen": "127.0.0.1:0", "drafter_lost_after_s": 10.0}
    with (
        LocalCluster(alphabet, erring, drafters=["ngram"], verifier=verifier, listener=places.hear) as cluster,
        ThreadPoolExecutor(3) as pool,
    ):
        asked = [pool.submit(ask, cluster, wish) for wish in (None, None, "ngram")]
        as_soon_as(lambda: (told := seen(cluster, "ngram-0")).sessions == 3 and told.movable == 2)
        late = cluster.spawn_drafter("standalone")
        cluster.wait_joined()
        as_soon_as(lambda: places.scraped("verifier-0")("specsplit_hand_overs_total") >= 1)
        told = seen(cluster, "ngram-0")
        assert told.sessions > told.movable, "the one whose caller asked for it"
        first, second, wished = (each.result() for each in asked)
        assert first.text == second.text == wished.text, "the same seed, whoever drafts"
        assert seen(cluster, late.name).accepted > 1.0, "nodes a step"
