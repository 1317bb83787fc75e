"""Where members compute: when a drafter takes cores from its verifier, by hand and as laws, and what is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from specsplit.errors import InvalidRequest
from specsplit.host import host_of, machine
from specsplit.settings import DrafterSettings
from specsplit.v1 import common_pb2 as pb
from specsplit.values import DrafterKind, Host
from specsplit.values.host import CoreRange
from specsplit.wire.hosts import host_from_wire, host_to_wire
from tests.wire.strategies import hosts


def on(cores: set[int], threads: int, machine: str = "m", device: str = "cpu") -> Host:
    return Host(machine, Host.ranges(cores), threads, device)


def test_cores_are_written_as_ranges() -> None:
    assert Host.ranges({5, 0, 2, 1}) == (CoreRange(0, 2), CoreRange(5, 5))
    assert ",".join(map(str, Host.ranges({5, 0, 2, 1}))) == "0-2,5"


@pytest.mark.parametrize(
    ("drafter", "verifier", "share"),
    [
        (on({0, 1}, 1), on({0, 1}, 2), 0.5),  # the worked example
        (on({0, 1}, 1), on({0, 1}, 1), 0.0),  # a core for each
        (on({0}, 1), on({0}, 1), 1.0),
        (on({0}, 1), on({1}, 1), 0.0),
        (on({0, 1}, 2), on({0, 1}, 2), 1.0),
        (
            on({3, 4}, 8),
            on({0, 1, 2, 3}, 4),
            0.25,
        ),  # of eight threads no more than two run at once, one of them on core 4
        (on({0}, 1), on({0}, 1, "another"), 0.0),
        (on({0}, 1, ""), on({0}, 1, ""), 0.0),  # both of a build that does not tell
        (on({0}, 1, device="cuda:0"), on({0}, 1), 0.0),
        (on({0}, 1), on({0}, 1, device="cuda:0"), 0.0),
    ],
)
def test_a_drafter_takes_the_cores_that_both_are_short_of(drafter: Host, verifier: Host, share: float) -> None:
    assert drafter.contention(verifier) == share


@given(hosts, hosts)
def test_what_is_taken_is_a_share_and_nothing_is_taken_from_cores_that_nobody_shares(one: Host, other: Host) -> None:
    share = one.contention(other)
    assert 0.0 <= share <= 1.0
    assert (share > 0) == (other.contention(one) > 0)
    apart = Host.ranges(range(100, 112))
    assert one.contention(replace(other, cores=apart)) == 0.0


@given(hosts, hosts)
def test_more_threads_never_take_less(drafter: Host, verifier: Host) -> None:
    more = replace(drafter, threads=drafter.threads + 1)
    assert more.contention(verifier) >= drafter.contention(verifier)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.Host(machine="a\n"), "host.machine"),
        (pb.Host(machine="a", device="\x1b[2J"), "host.device"),
        (pb.Host(machine="a", threads=2**16 + 1), "host.threads"),
        (pb.Host(machine="a", cores=[2, 1]), "host.cores"),
        (pb.Host(machine="a", cores=[0, 3, 3, 4]), "host.cores"),
        (pb.Host(machine="a", cores=[0, 2**32 - 1]), "host.cores"),
        (pb.Host(machine="a", cores=[0, 1, 3]), "host.cores"),
    ],
)
def test_what_no_machine_has_is_refused_by_name(message: pb.Host, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        host_from_wire(message)
    assert caught.value.field == field


@given(hosts)
def test_a_host_survives_the_wire(host: Host) -> None:
    assert host_from_wire(host_to_wire(host) or pb.Host()) == host


def test_a_process_knows_its_machine_and_cores_and_the_settings_have_the_last_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = DrafterSettings(kind=DrafterKind.NGRAM, threads=3)
    found = host_of(settings)
    assert found.machine == machine() and found.threads == 3 and found.device == "cpu"
    assert found.num_cores == len(os.sched_getaffinity(0))
    assert host_of(settings.model_copy(update={"machine": "mine"})) == replace(found, machine="mine")
    monkeypatch.setattr("specsplit.host.BOOT_ID", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text("1-2-3\n")
    first = machine()
    assert len(first) == 12 and "1-2-3" not in first
    (tmp_path / "boot_id").write_text("1-2-4\n")
    assert machine() != first


@pytest.mark.parametrize(("node", "told"), [(0x1, True), (0x1 | 1 << 40, False)])
def test_without_a_boot_id_the_network_address_tells_the_machine_and_one_that_was_drawn_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, node: int, *, told: bool
) -> None:
    monkeypatch.setattr("specsplit.host.BOOT_ID", tmp_path / "none")
    monkeypatch.setattr("uuid.getnode", lambda: node)
    assert bool(machine()) is told
