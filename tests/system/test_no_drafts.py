"""The pocket models as they are, whose drafts cost more than they bring: everything that a user looks at says so in the same words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.client import Result
from specsplit.values import NoDraftsCause
from tests.support.command import run

from .conftest import as_soon_as

TARGET = Path(__file__).parents[2] / "models" / "pocket" / "target"
DEAR = {"paced_step_per_token_us": 40_000.0}
"""A node makes a step as much longer as the root does, on any machine, so that none ever pays."""
SENTENCE = (
    r"(no|hardly any) drafts: a step with \d+ nodes? costs \d+\.\d times one without, and \d+\.\d tokens are expected"
)
PROMPT = "def main("


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return []


@pytest.fixture(scope="module")
def cluster(lines: list[str]) -> Iterator[LocalCluster]:
    with LocalCluster(
        TARGET,
        drafts_beside(TARGET),
        drafters=["eagle3"],
        coordinator={"web_listen": "127.0.0.1:0"},
        verifier=DEAR,
        listener=lambda name, line: lines.append(line),
    ) as started:
        yield started


def generated(cluster: LocalCluster, *stop: str) -> Result:
    with cluster.client() as client:
        return client.generate(PROMPT, max_tokens=24, ignore_eos=True, stop=stop)


def test_where_no_draft_pays_results_status_and_page_say_what_one_costs_and_brings(
    cluster: LocalCluster, lines: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    page = next(found[1] for line in lines if (found := re.search(r"page on (http://\S+/)", line)))

    def status() -> str:
        assert run("status", "--once", "--address", cluster.address) == 0
        return capsys.readouterr().out

    def shown() -> str:
        with urlopen(f"{page}cluster.json", timeout=10) as answer:
            (verifier,) = json.load(answer)["verifiers"]
        return (verifier["speculation"] or {}).get("no_drafts") or ""

    def said() -> bool:
        told = generated(cluster).no_drafts
        return told is not None and re.fullmatch(SENTENCE, told.sentence) is not None

    as_soon_as(said)
    as_soon_as(lambda: said() and re.search(f"^verifier-0: {SENTENCE}$", status(), re.MULTILINE) is not None)
    as_soon_as(lambda: said() and re.fullmatch(SENTENCE, shown()) is not None)


def test_an_answer_that_ends_by_a_stop_string_says_it_too(cluster: LocalCluster) -> None:
    end = generated(cluster).text[-8:]

    def said() -> bool:
        told = generated(cluster, end)
        assert told.done.matched_stop == end
        return told.no_drafts is not None and told.no_drafts.cause is NoDraftsCause.PRICE

    as_soon_as(said)
