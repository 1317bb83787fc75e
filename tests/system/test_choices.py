"""Several choices of one prompt, over whole processes: each is what a request of its own with that seed would get."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from specsplit.cli.local import LocalCluster
from specsplit.errors import InvalidRequest
from specsplit.requests import Delta, choice_seed
from tests.system.conftest import SERIAL, empty, eventually

POCKET = Path("models/pocket")
PROMPT = "def fibonacci(n):\n"
SEEDED = {"temperature": 0.9, "top_k": 200, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two verifiers, so that choices are spread, and a drafter for both."""
    settings = {"max_sessions": 8}
    options = {"max_n": 8}
    with LocalCluster(
        POCKET / "target",
        POCKET / "draft",
        verifiers=2,
        drafters=["standalone"],
        verifier=settings,
        coordinator=options,
    ) as started:
        yield started


@pytest.mark.parametrize("drafter", ["standalone", "none"])
def test_the_choices_of_a_seeded_request_are_what_requests_with_their_seeds_get(
    cluster: LocalCluster, drafter: str
) -> None:
    with cluster.client() as client:
        together = client.generate(PROMPT, n=4, seed=2024, drafter=drafter, plan=SERIAL, timeout_s=120, **SEEDED)  # pyright: ignore[reportArgumentType]
        alone = [
            client.generate(PROMPT, seed=choice_seed(2024, i), drafter=drafter, plan=SERIAL, timeout_s=120, **SEEDED)  # pyright: ignore[reportArgumentType]
            for i in range(4)
        ]
    assert [each.tokens for each in together.choices] == [each.tokens for each in alone]
    assert [each.text for each in together.choices] == [each.text for each in alone]
    assert [each.seed for each in together.choices] == [choice_seed(2024, i) for i in range(4)]
    assert len({each.tokens for each in together.choices}) == 4
    assert len({each.done.verifier for each in together.choices}) == 2
    assert drafter == "none" or all(each.speculation.accepted for each in together.choices)


def test_the_choices_of_a_greedy_request_are_equal_and_come_mixed(cluster: LocalCluster) -> None:
    with cluster.client() as client:
        events = list(client.stream(PROMPT, n=3, max_tokens=256, ignore_eos=True, timeout_s=120))
        plain = client.generate(PROMPT, max_tokens=256, ignore_eos=True, timeout_s=120)
    texts = ["".join(e.text for e in events if isinstance(e, Delta) and e.index == i) for i in range(3)]
    assert texts == [plain.text] * 3
    order = [event.index for event in events]
    assert order != sorted(order), "no choice waits for another to end"


def test_a_caller_that_leaves_in_the_middle_leaves_no_session_behind(cluster: LocalCluster) -> None:
    with cluster.client() as client:
        with closing(client.stream(PROMPT, n=8, temperature=1.0, max_tokens=480, ignore_eos=True)) as events:
            running: set[int] = set()
            while len(running) < 8:
                running.add(next(events).index)
            assert client.cluster(timeout_s=5).running == 8
        eventually(lambda: empty(client.cluster(timeout_s=5)))


def test_no_choice_and_more_than_the_operator_allows_are_refused_by_name(cluster: LocalCluster) -> None:
    with cluster.client() as client:
        for n, expected in (
            (0, r"n: is 0, expected 1\.\.16"),
            (17, "n: is 17, expected"),
            (9, "n: is 9, .* max_n = 8"),
        ):
            with pytest.raises(InvalidRequest, match=expected):
                client.generate(PROMPT, n=n)
