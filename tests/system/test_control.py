"""The controller of a running cluster, over real processes: it is switched while sessions run, and heartbeats tell what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specsplit.cli.local import LocalCluster
from specsplit.membership import Member
from specsplit.values import Adaptive, Control, ModelInfo, NoDrafts, NoDraftsCause, PlanChanges, SpeculationReport
from tests.support.command import run

from .conftest import PACED, WAITING, as_soon_as, eventually, letters

SETTINGS = PACED | {"num_steps": 3, "num_draft_tokens": 8, "adaptive": "static"}


@pytest.fixture(scope="module")
def cluster(alphabet: Path, erring: Path) -> Iterator[LocalCluster]:
    with LocalCluster(alphabet, erring, drafters=["standalone", "ngram"], verifier=SETTINGS) as started:
        yield started


def reports(cluster: LocalCluster) -> dict[str, SpeculationReport]:
    with cluster.client() as client:
        return {m.member_id: m.speculation for m in client.cluster().members if m.speculation is not None}


def order(cluster: LocalCluster, control: Control | None = None, *, reset: bool = False) -> None:
    with cluster.client() as client:
        client.set_plan(PlanChanges(), control, reset=reset)


def controllers(cluster: LocalCluster) -> dict[str, str]:
    return {name: report.adaptive for name, report in reports(cluster).items()}


def test_the_controller_is_switched_while_sessions_run_and_they_go_on(cluster: LocalCluster) -> None:
    def write(start: str) -> str:
        with cluster.client() as client:
            return client.generate("abc" + start, max_tokens=480, ignore_eos=True).text

    with ThreadPoolExecutor(3) as pool:
        texts = {start: pool.submit(write, start) for start in "dmx"}
        for adaptive in (Adaptive.EMA, Adaptive.GOODPUT, Adaptive.STATIC, Adaptive.GOODPUT):
            order(cluster, Control(adaptive, 6))
            as_soon_as(lambda adaptive=adaptive: controllers(cluster) == {"verifier-0": adaptive.value})
    for start, text in texts.items():
        assert text.result() == letters(start, 480)
    (report,) = reports(cluster).values()
    assert report.max_draft_tokens == 6
    order(cluster, reset=True)
    as_soon_as(lambda: controllers(cluster) == {"verifier-0": "static"})


@pytest.mark.slow
def test_status_and_results_say_why_nothing_is_drafted(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with cluster.client() as client:
        told = client.generate("abc", max_tokens=8, ignore_eos=True, drafter="none").no_drafts
        assert told is not None and told.sentence == "no drafts: the request asks for none"
        stopped = client.generate("abc", max_tokens=300, stop=["p"], drafter="none")
        assert stopped.text == letters("c", 12) and stopped.no_drafts == told, (
            "the verifier was left before it could say"
        )
        client.set_plan(PlanChanges(num_steps=0))
        why = NoDrafts(NoDraftsCause.PLAN)

        def heard() -> bool:
            done = client.generate("abc", max_tokens=300, ignore_eos=True).no_drafts
            (report,) = reports(cluster).values()
            return done == why and report.no_drafts is not None and report.no_drafts.cause is why.cause

        as_soon_as(heard)
        assert run("status", "--once", "--address", cluster.address) == 0
        assert "the plan in force has none\n" in capsys.readouterr().out
        client.set_plan(PlanChanges(), reset=True)
        as_soon_as(lambda: client.generate("abc", max_tokens=300, ignore_eos=True, plan=WAITING).no_drafts is None)


def test_heartbeats_tell_what_speculation_brings_and_what_each_drafter_does(cluster: LocalCluster) -> None:
    with cluster.client() as client:
        for drafter in ("standalone", "ngram"):
            text = client.generate("abc", max_tokens=200, ignore_eos=True, drafter=drafter).text
            assert text == letters("c", 200)

    def told() -> bool:
        (report,) = reports(cluster).values()
        return {each.member_id for each in report.drafters} == {"standalone-0", "ngram-1"} and report.accept_length > 1

    eventually(told)
    (report,) = reports(cluster).values()
    assert 0 < report.hit_rate <= 1
    assert report.step_s >= 0.005, "steps are paced"
    assert report.launched.num_steps == 3
    for each in report.drafters:
        assert each.steps > 0 and each.round_trip_s > 0 and each.sessions == 0


def test_a_verifier_that_joins_later_is_told_and_one_that_cannot_obey_stays_as_it_is(cluster: LocalCluster) -> None:
    order(cluster, Control(Adaptive.EMA))
    odd = cluster.spawn_verifier(num_steps=4)
    cluster.wait_joined()
    as_soon_as(lambda: controllers(cluster).get("verifier-0") == "ema")
    eventually(lambda: controllers(cluster).get(odd.name) == "static")
    with cluster.client() as client:
        members: list[Member] = [each for each in client.cluster().members if isinstance(each.role, ModelInfo)]
    assert len(members) == 2, (
        "it is no tier of its settings, so it keeps its own controller, and its place in the cluster"
    )
