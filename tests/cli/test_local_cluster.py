"""The local cluster with real processes that need no model: a coordinator and ngram drafters."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise, takewhile
from pathlib import Path
from typing import cast
from urllib.request import urlopen

import pytest

from specsplit.build import build
from specsplit.cli.local import Child, LocalCluster, is_down
from specsplit.errors import Unavailable
from specsplit.values import DrafterKind
from tests.support.processes import all_gone, children_of, runs
from tests.support.ranks import free_port

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"


@pytest.fixture
def lines() -> list[tuple[str, str]]:
    return []


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Whoever ends a drafter of it starts another."""
    with LocalCluster(
        POCKET,
        verifiers=0,
        drafters=["ngram"],
        coordinator={"lost_after_ms": 1500, "heartbeat_ms": 100},
        drafter={"max_sessions": 5},
    ) as cluster:
        yield cluster


def members(cluster: LocalCluster) -> dict[str, int]:
    """How many sessions each may have."""
    with cluster.client() as client:
        return {member.member_id: member.max_sessions for member in client.cluster().members}


def test_inside_it_everyone_has_joined_and_outside_everyone_is_gone_without_a_warning(
    lines: list[tuple[str, str]],
) -> None:
    with LocalCluster(
        POCKET, verifiers=0, drafters=["ngram"], listener=lambda name, line: lines.append((name, line))
    ) as cluster:
        with cluster.client() as client:
            told = client.cluster()
        (member,) = told.members
        assert (member.member_id, member.address) == ("ngram-0", cluster.drafters[0].address)
        assert member.build == told.build == build(), "as --version says"
        children = cluster.children
        assert all(child.alive for child in children)
    assert [child.process.returncode for child in children] == [0, 0]
    assert ("coordinator", f"specsplit coordinator listening on {children[0].address}") in lines
    assert not any("Traceback" in line or '"warning"' in line or '"error"' in line for _, line in lines)


def test_where_the_port_is_known_members_start_while_the_coordinator_does() -> None:
    """Each takes a second or more to import what it needs."""
    started: list[int] = []

    def listener(name: str, line: str) -> None:
        if name == "coordinator" and "listening on" in line:
            started.append(len(cluster.drafters))

    listen = f"127.0.0.1:{free_port()}"
    cluster = LocalCluster(POCKET, verifiers=0, drafters=["ngram"], listen=listen, listener=listener)
    with cluster:
        assert started == [1]
        assert set(members(cluster)) == {"ngram-0"}


def test_a_verifier_starts_while_the_coordinator_does_though_its_port_may_be_any() -> None:
    """It takes seconds to import what it needs. This one has no model, and ends."""
    started: list[list[str]] = []

    def listener(name: str, line: str) -> None:
        if name == "coordinator" and "listening on" in line:
            started.append([each.name for each in cluster.children])

    cluster = LocalCluster(POCKET, verifier={"model": Path("nowhere")}, drafters=["ngram"], listener=listener)
    with pytest.raises(Unavailable, match=r"verifier-0 ended with status 1.*nowhere"):
        cluster.start()
    assert started == [["coordinator", "verifier-0"]]


def test_settings_reach_the_children_and_more_can_be_added(cluster: LocalCluster) -> None:
    before = members(cluster)
    assert set(before.values()) == {5}
    more = cluster.spawn_drafter("ngram", max_sessions=6)
    cluster.wait_joined()
    assert members(cluster) == before | {more.name: 6}


def told(cluster: LocalCluster, kind: DrafterKind | str, **settings: object) -> dict[str, str]:
    """The settings that a new drafter of this kind is started with; it is not waited for."""
    child = cluster.spawn_drafter(kind, **settings)
    child.kill()
    pairs = dict(pairwise(cast("list[str]", child.process.args)))
    return {name: pairs[f"--{name}"] for name in ("kind", "model", "target") if f"--{name}" in pairs}


def test_a_drafter_gets_the_model_of_its_kind_and_a_head_its_target_too() -> None:
    eagle3 = {"kind": "eagle3", "model": "head", "target": str(POCKET)}
    with LocalCluster(POCKET, {"eagle3": Path("head"), DrafterKind.STANDALONE: Path("draft")}, verifiers=0) as cluster:
        assert told(cluster, "eagle3") == told(cluster, DrafterKind.EAGLE3) == eagle3
        assert told(cluster, "standalone") == {"kind": "standalone", "model": "draft"}
        assert told(cluster, "eagle", model=Path("head")) == eagle3 | {"kind": "eagle"}
        assert told(cluster, "ngram") == {"kind": "ngram"}


def test_one_folder_alone_is_the_standalone_kinds() -> None:
    with LocalCluster(POCKET, Path("draft"), verifiers=0) as cluster:
        assert told(cluster, "standalone") == {"kind": "standalone", "model": "draft"}


def test_a_drafter_without_the_model_that_its_kind_needs_is_not_started(cluster: LocalCluster) -> None:
    before = list(cluster.drafters)
    for kind in DrafterKind:
        if kind.needs_model:
            with pytest.raises(Unavailable, match=f"a drafter of kind {kind.value} needs a model"):
                cluster.spawn_drafter(kind)
    assert cluster.drafters == before


def test_a_killed_child_is_dead_and_leaves_the_cluster(cluster: LocalCluster) -> None:
    there, dead = members(cluster), cluster.dead
    drafter = next(each for each in cluster.drafters if each.alive)
    drafter.kill()
    assert {*cluster.dead} - {*dead} == {drafter}
    assert drafter.process.returncode == -signal.SIGKILL
    another = cluster.spawn_drafter("ngram")
    cluster.wait_joined()
    assert {*members(cluster)} == {*there} - {drafter.name} | {another.name}


def test_a_child_that_was_told_to_end_is_not_waited_for(cluster: LocalCluster) -> None:
    there = members(cluster)
    drafter = next(each for each in cluster.drafters if each.alive)
    drafter.terminate()
    drafter.wait(30)
    another = cluster.spawn_drafter("ngram")
    cluster.wait_joined()
    assert {*members(cluster)} == {*there} - {drafter.name} | {another.name}


def test_a_child_that_cannot_start_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, verifiers=0)
    with pytest.raises(Unavailable, match=r"coordinator ended with status 1.*config\.json does not exist"):
        cluster.start()
    assert all(not child.alive for child in cluster.children)


UP = (
    "import sys; from pathlib import Path; from specsplit.cli.local import LocalCluster; from specsplit.cli import up;"
    f"up.watch(LocalCluster(Path({str(POCKET)!r}), verifiers=0, drafters=['ngram', 'ngram']))"
)


@contextmanager
def running_up() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """`up` with a coordinator and two drafters, and the pids of these three."""
    with subprocess.Popen(
        [sys.executable, "-c", UP], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            printed = [process.stdout.readline().split(" ")[0] for _ in range(4)]
            assert printed == ["coordinator", "ngram-0", "ngram-1", "ready:"]
            children = children_of(process.pid)
            assert len(children) == 3
            yield process, children
        finally:
            process.kill()


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.read()


def test_up_ends_with_its_children_on_a_signal() -> None:
    with running_up() as (process, children):
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert all_gone(children, 0)


def test_up_goes_on_without_a_drafter_that_dies_and_ends_if_the_coordinator_does() -> None:
    with running_up() as (process, children):
        os.kill(children[1], signal.SIGKILL)
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("specsplit"))
        assert line == "specsplit | ngram-0 (status -9) ended unexpectedly; the cluster goes on without it\n"
        assert process.poll() is None
        assert runs(children[0])
        os.kill(children[0], signal.SIGKILL)
        assert process.wait(30) == 1
        assert "the cluster is down; ended unexpectedly: coordinator (status -9), ngram-0 (status -9)" in _said(process)
        assert all_gone(children, 0)


def test_nobody_is_left_behind_when_the_parent_is_killed() -> None:
    with running_up() as (process, children):
        process.kill()
        process.wait(10)
        assert all_gone(children)


def test_demo_takes_its_children_down_on_sigterm() -> None:
    command = [sys.executable, "-m", "specsplit", "demo", "--models", str(POCKET.parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            children: list[int] = []
            deadline = time.monotonic() + 60
            while not children and time.monotonic() < deadline:
                time.sleep(0.05)
                children = children_of(process.pid)
            assert children
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 130
            assert all_gone(children)  # one that was just being started leaves when its pipe ends, a moment later
            assert "Traceback" not in _said(process)
        finally:
            process.kill()


@pytest.mark.slow
def test_demo_with_its_page_goes_on_until_ctrl_c_and_then_ends_without_a_complaint() -> None:
    command = [sys.executable, "-m", "specsplit", "demo", "--page", "--models", str(POCKET.parent), "--max-tokens", "8"]
    command += ["--inflate-layers", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            lines = list(takewhile(lambda line: "Ctrl-C ends it" not in line, process.stdout))
            (url,) = (found[1] for line in lines if (found := re.search(r"The page is at (http://\S+/)", line)))
            with urlopen(f"{url}cluster.json", timeout=10) as answer:
                assert json.load(answer)["totals"]["requests"] >= 3
            children = children_of(process.pid)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
            assert all_gone(children, 0)
            assert "Traceback" not in process.stdout.read()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("coordinator", "verifiers", "down"),
    [
        (True, [True, True], False),
        (True, [False, True], False),
        (True, [False, False], True),
        (False, [True], True),
        (True, [], False),
    ],
)
def test_a_cluster_is_down_without_its_coordinator_or_its_last_verifier(
    coordinator: bool, verifiers: list[bool], down: bool
) -> None:
    assert is_down(coordinator, verifiers) is down


def test_a_password_in_a_setting_is_on_no_command_line_and_in_no_log() -> None:
    store = {"quota_store": "redis://:hunter2@127.0.0.1:1/3", "client_max_requests": 4}
    child = Child("coordinator", "coordinator", {"model": POCKET, "listen": "127.0.0.1:0", **store}, None)
    try:
        child.wait_listening(100)
        assert "hunter2" not in Path(f"/proc/{child.pid}/cmdline").read_text()
        assert "redis://:***@127.0.0.1:1/3" in child.tail and "hunter2" not in child.tail, "it is told all the same"
    finally:
        child.kill()
