"""Adaptive plans over real processes: what speculation brings changes, and the plan follows.

That the text stays the target's own whatever a controller does, test_lossless.py has: of `ema` and one that draws plans at random in the
controllers' test, of `goodput` in each test whose requests leave the size of the plan open too.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specsplit.cli.local import LocalCluster
from tests.support.scrape import Places, eventually

TARGET = Path("models/pocket/target")
STEPS = 3
TIERS = {"warmup_batches": 2, "update_interval": 2, "1": {"candidate_steps": [1, STEPS, 5]}}
EASY = {"prompt": "assert " + "check(value, 1)\nassert " * 30, "temperature": 0.0}
"""Greedy text that repeats itself: the n-gram drafter is right."""
HARD = {"prompt": "class", "temperature": 1.5, "seed": 7}
"""Text that never comes twice: it is wrong."""


@pytest.fixture(scope="module")
def places() -> Places:
    return Places()


@pytest.fixture(scope="module")
def cluster(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    file = tmp_path_factory.mktemp("tiers") / "tiers.json"
    file.write_text(json.dumps(TIERS))
    settings = {
        "metrics_listen": "127.0.0.1:0",
        "adaptive": "ema",
        "adaptive_config": file,
        "num_steps": STEPS,
        "num_draft_tokens": 10,
        "draft_ahead": False,  # every step has what the drafter makes of it, however busy the machine
        "wait_budget_us": 2_000_000,
    }
    with LocalCluster(TARGET, drafters=["ngram"], verifier=settings, listener=places.hear) as started:
        yield started


@contextmanager
def load(cluster: LocalCluster, request: dict[str, Any]) -> Iterator[None]:
    """One request after another."""
    over = threading.Event()

    def ask() -> None:
        with cluster.client() as client:
            while not over.is_set():
                client.generate(max_tokens=96, ignore_eos=True, drafter="ngram", **request)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield
        finally:
            over.set()
    asking.result()


def test_the_plan_falls_under_a_hard_load_and_rises_again_under_an_easy_one(
    cluster: LocalCluster, places: Places
) -> None:
    def plan_is(num_steps: int, num_draft_tokens: int) -> bool:
        now = places.scraped("verifier-0")
        shown = now("specsplit_spec_num_steps"), now("specsplit_spec_num_draft_tokens")
        return shown == (num_steps, num_draft_tokens)

    with load(cluster, EASY):
        eventually(lambda: plan_is(5, 16), "easy text deserves the highest tier", 60)
    with load(cluster, HARD):
        eventually(lambda: plan_is(1, 4), "hard text deserves the lowest", 60)
    with load(cluster, EASY):
        eventually(lambda: plan_is(5, 16), "easy text deserves the highest again", 60)
    assert places.scraped("verifier-0")("specsplit_plan_switches_total") >= 3


@pytest.fixture(scope="module")
def choosing(cluster: LocalCluster) -> str:
    """A verifier that chooses every step by what it commits per second stands in the place of the other: its name."""
    (steady,) = cluster.verifiers
    settings = {"adaptive": "goodput", "adaptive_config": None, "draft_ahead": True, "wait_budget_us": 20_000}
    started = cluster.spawn_verifier(**settings)
    cluster.wait_joined()
    steady.terminate()
    assert steady.wait(30) == 0
    return started.name


@pytest.mark.slow
def test_what_a_step_spends_falls_under_a_hard_load_and_rises_again_under_an_easy_one(
    cluster: LocalCluster, places: Places, choosing: str
) -> None:
    def spent() -> tuple[float, float]:
        now = places.scraped(choosing)
        return now("specsplit_spec_num_steps"), now("specsplit_spec_num_draft_tokens")

    for text, fits, what in (
        (EASY, lambda: min(spent()) >= 4, "easy text deserves deep drafts"),
        (HARD, lambda: spent()[0] <= 2 and spent()[1] <= 3, "hard text deserves hardly any"),
        (EASY, lambda: min(spent()) >= 4, "easy text deserves deep drafts again"),
    ):
        with load(cluster, text):
            eventually(fits, what, 60)
