"""A verifier that drafts by lookup, by itself and beside a drafter: real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.client import Client, Options, Result
from specsplit.errors import Unavailable
from specsplit.requests import Delta
from tests.support.scrape import Places
from tests.support.torchrun import forked_torchrun
from tests.system.conftest import SERIAL, WAITING, as_soon_as, eventually, letters

REPEATED = "abcdefghijklmnopqrstuvwxyzab"
POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
PROMPTS = [[*range(40, 60)] * 3, [*range(300, 330)] * 2, [*range(40, 60), *range(300, 330)]]
WAYS: list[Options] = [{}, {"temperature": 0.9, "top_p": 0.95, "seed": 2024}, {"frequency_penalty": 0.3}]


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


def test_lookup_goes_on_where_a_head_that_it_drafted_beside_is_killed_and_text_stays() -> None:
    settings = {"lookup": True, "lookup_beside": True, "paced_step_base_ms": 10.0, "drafter_lost_after_s": 2.0}
    started = LocalCluster(POCKET, drafts_beside(POCKET), drafters=["eagle3"], verifier=settings)
    with started as cluster, cluster.client() as client:
        prompt, head = [*range(40, 60)] * 3, cluster.drafters[0]
        plain = client.generate(prompt, max_tokens=240, ignore_eos=True, drafter="none")
        both = client.generate(prompt, max_tokens=240, ignore_eos=True, plan=SERIAL)
        assert both.tokens == plain.tokens and both.done.drafter == head.name
        tokens, behind = list[int](), 0
        for event in client.stream(prompt, max_tokens=240, ignore_eos=True, plan=SERIAL):
            if isinstance(event, Delta):
                if not tokens:
                    head.kill()
                tokens += event.tokens
                behind += event.num_correct_drafts if len(tokens) > 120 else 0
        assert tuple(tokens) == plain.tokens and behind > 0
        eventually(lambda: client.generate(prompt, max_tokens=4).done.drafter == "")
        alone = client.generate(prompt, max_tokens=240, ignore_eos=True)
    assert alone.tokens == plain.tokens and alone.speculation.accepted > 0


def written(client: Client, drafter: str | None = None) -> list[Result]:
    """What comes of all prompts in all ways, which are decoded together."""
    cases = [(prompt, way) for prompt in PROMPTS for way in WAYS]

    def write(case: tuple[list[int], Options]) -> Result:
        options: Options = {"max_tokens": 48, "ignore_eos": True, "drafter": drafter, **case[1]}
        return client.generate(case[0], timeout_s=120, **options)

    with ThreadPoolExecutor(len(cases)) as pool:
        return list(pool.map(write, cases))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("shared", ["--dp-size", "--tp-size"])
def test_ranks_and_the_processes_of_a_split_target_look_up_and_text_stays(shared: str, tmp_path: Path) -> None:
    with LocalCluster(POCKET, drafters=[]) as cluster, cluster.client() as client:
        one = cluster.verifiers[0]
        alone = written(client, "none")
        serve = ["verifier", "--model", POCKET, shared, 2, "--lookup", "--coordinator", cluster.address]
        with forked_torchrun(2, *serve, log=tmp_path / "processes.log") as group:
            there = 1 + (2 if shared == "--dp-size" else 1)
            as_soon_as(lambda: len(client.cluster().members) == there, within_s=120)
            one.terminate()
            assert one.wait(30) == 0
            looked_up = written(client)
            assert [each.tokens for each in looked_up] == [each.tokens for each in alone]
            accepted: dict[str, int] = {}
            for each in looked_up:
                accepted[each.done.verifier] = accepted.get(each.done.verifier, 0) + each.speculation.accepted
            assert len(accepted) == there - 1 and all(accepted.values())
            assert all(each.done.drafter == "" for each in looked_up)
            asked = written(client, "ngram")
            assert [each.tokens for each in asked] == [each.tokens for each in alone]
            assert sum(each.speculation.accepted for each in asked) > 0
            group.signal(0, signal.SIGTERM)
            assert group.wait() == 0
