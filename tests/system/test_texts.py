"""A session goes on with another kind of drafter if that brings more to its kind of text, over real processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import takewhile
from pathlib import Path
from threading import Event

from specsplit.cli.local import LocalCluster
from specsplit.client import Delta
from specsplit.values import DrafterReport
from tests.support.scrape import Places
from tests.support.toys import alphabet_target

from .conftest import ERRING, PACED, as_soon_as

RANDOM = 100.0
"""A temperature at which the alphabet's target says just anything: a draft with the same noise guesses it, an n-gram does not."""


LONG = 32_768
"""A context that no text here fills, however long another process takes to start."""


def ask(cluster: LocalCluster, enough: Event, wish: str | None = None) -> str:
    """What is generated until there is enough."""
    with (
        cluster.client() as client,
        closing(client.stream("abc", ignore_eos=True, drafter=wish, temperature=RANDOM, seed=7)) as events,
    ):
        return "".join(
            event.text for event in takewhile(lambda _: not enough.is_set(), events) if isinstance(event, Delta)
        )


def seen(cluster: LocalCluster, drafter: str) -> DrafterReport:
    """What is told of it and sampled sessions."""
    with cluster.client() as client:
        told = [member.speculation for member in client.cluster().members if member.speculation is not None]
    found = (each for report in told for each in report.drafters if each.member_id == drafter and each.sampled)
    return next(found, DrafterReport(drafter))


def test_sampled_sessions_are_handed_over_from_ngram_to_standalone_unless_their_callers_asked_for_ngram(
    tmp_path: Path,
) -> None:
    alphabet = alphabet_target(tmp_path / "target", max_context=LONG)
    erring = alphabet_target(tmp_path / "draft", wrong=ERRING, max_context=LONG)
    enough = Event()
    places = Places()
    verifier = PACED | {"paced_step_base_ms": 50.0, "metrics_listen": "127.0.0.1:0", "drafter_lost_after_s": 10.0}
    with (
        LocalCluster(alphabet, erring, drafters=["ngram"], verifier=verifier, listener=places.hear) as cluster,
        ThreadPoolExecutor(3) as pool,
        ExitStack() as stack,
    ):
        stack.callback(enough.set)  # whatever fails here, nobody is waited for
        asked = [pool.submit(ask, cluster, enough, wish) for wish in (None, None, "ngram")]
        as_soon_as(lambda: (told := seen(cluster, "ngram-0")).sessions == 3 and told.movable == 2)
        late = cluster.spawn_drafter("standalone")
        cluster.wait_joined()
        as_soon_as(lambda: places.scraped("verifier-0")("specsplit_hand_overs_total") >= 1)
        told = seen(cluster, "ngram-0")
        assert told.sessions > told.movable, "the one whose caller asked for it"
        as_soon_as(lambda: seen(cluster, late.name).accepted > 1.0)  # nodes a step
        enough.set()
        texts = [each.result() for each in asked]
        shortest = min(map(len, texts))
        assert shortest and len({text[:shortest] for text in texts}) == 1, "the same seed, whoever drafts"
