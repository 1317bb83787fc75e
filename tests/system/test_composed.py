"""Two ranks that share the pocket target, each split over two processes, which torchrun starts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.client import Client, Options, Result
from tests.support.streamed import streamed
from tests.support.torchrun import forked_torchrun
from tests.system.conftest import SERIAL, as_soon_as

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
PROMPTS = [list(range(40, 60)), list(range(300, 330))]
LONG = 150
WAYS: dict[str, Options] = {"greedy": {}, "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 2024}}
CASES = [(kind, way) for kind in ("none", "standalone") for way in WAYS]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """With a verifier of the whole target, and a drafter."""
    drafts, options = drafts_beside(POCKET), {"failover_s": 120}
    with LocalCluster(POCKET, drafts, drafters=["standalone"], coordinator=options) as started:
        yield started


def written(client: Client) -> list[Result]:
    """What comes of all cases, which are decoded together, one after the other on each rank."""
    with ThreadPoolExecutor(len(CASES)) as pool:
        calls = [pool.submit(write, client, place, *case) for place, case in enumerate(CASES)]
        return [call.result(120) for call in calls]


def write(client: Client, place: int, kind: str, way: str) -> Result:
    options: Options = {"max_tokens": 12, "ignore_eos": True, "drafter": kind, "plan": SERIAL, **WAYS[way]}
    return client.generate(PROMPTS[place % len(PROMPTS)], timeout_s=120, **options)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_of_two_processes_write_what_one_verifier_does_and_a_stream_outlives_a_killed_follower(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    one, log = cluster.verifiers[0], tmp_path / "processes.log"
    serve = ["verifier", "--model", POCKET, "--dp-size", 2, "--tp-size", 2, "--coordinator", cluster.address]
    with cluster.client() as client:
        whole = [each.tokens for each in written(client)]
        long = client.generate(PROMPTS[0], max_tokens=LONG, ignore_eos=True, drafter="none").tokens
        there = len(client.cluster().members)
        with forked_torchrun(4, *serve, log=log) as group:
            as_soon_as(lambda: len(client.cluster().members) == there + 2, within_s=120)
            one.terminate()
            assert one.wait(30) == 0
            parts = written(client)
            assert [each.tokens for each in parts] == whole
            assert len({each.done.verifier for each in parts}) == 2
            assert all(
                each.speculation.accepted for (kind, _), each in zip(CASES, parts, strict=True) if kind != "none"
            )
            tokens = streamed(client, PROMPTS[0], LONG, lambda: group.signal(3, signal.SIGKILL))
            assert tokens == long
            assert "rank 3 of 4 is lost" in group.output
            assert group.output.count("joined the cluster") == 4
            as_soon_as(lambda: len(client.cluster().members) == there + 1, within_s=120)
            group.signal(2, signal.SIGTERM)
            assert group.wait() == 0, "a rank that is told to leave takes the others and all followers with it"
            assert "terminate called" not in group.output
