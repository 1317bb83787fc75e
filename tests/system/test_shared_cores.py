"""Members say where they compute: on the cores of its verifier a drafter is known to take some, on others of the same machine it is not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specsplit.cli.local import LocalCluster
from specsplit.membership import Member
from tests.support.command import run

from .conftest import PACED, as_soon_as, letters


@contextmanager
def pinned(cores: set[int]) -> Iterator[None]:
    """What is started in here runs on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def members(cluster: LocalCluster) -> dict[str, Member]:
    with cluster.client() as client:
        return {member.member_id: member for member in client.cluster().members}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is all there is")
def test_a_drafter_on_its_verifiers_core_takes_it_and_one_on_another_does_not(
    alphabet: Path, erring: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    core, another, *_ = sorted(os.sched_getaffinity(0))
    with pinned({core}), LocalCluster(alphabet, erring, drafters=["standalone"], verifier=PACED) as cluster:
        with pinned({another}):
            apart = cluster.spawn_drafter("ngram").name
        elsewhere = cluster.spawn_drafter("ngram", machine="elsewhere").name
        cluster.wait_joined()
        as_soon_as(lambda: len(members(cluster)) == 4)
        found = members(cluster)
        verifier = found["verifier-0"].host
        taken = {name: member.host.contention(verifier) for name, member in found.items() if name != "verifier-0"}
        assert taken == {"standalone-0": 1.0, apart: 0.0, elsewhere: 0.0}
        assert run("status", "--once", "--address", cluster.address) == 0
        shown = capsys.readouterr().out
        assert "standalone-0: takes cores while it draws ahead: 100% of those of verifier-0" in " ".join(shown.split())
        assert shown.count("takes cores") == 1
        with cluster.client() as client:
            assert client.generate("abc", max_tokens=60, ignore_eos=True).text == letters("c", 60)
