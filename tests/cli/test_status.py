"""`specsplit status`: what it shows of clusters of any size on screens of any width, and as JSON."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.cli.adapters_view import ADAPTERS
from specsplit.cli.cluster_view import DRAFTERS, MEMBERS, SPECULATION, view
from specsplit.cli.columns import Column, fitting
from specsplit.cli.screen import Screen
from specsplit.cli.status import as_object
from specsplit.features import FeatureNeed
from specsplit.membership import Cluster, GroupRank, Member, WaveReport
from specsplit.values import (
    Adapter,
    AdapterLoad,
    DrafterInfo,
    DrafterKind,
    DrafterReport,
    Estimate,
    Load,
    NoDrafts,
    NoDraftsCause,
    Plan,
    SpeculationReport,
)
from tests.client.scripted import MEMBERS as KNOWN
from tests.client.scripted import Scripted
from tests.support.command import run

D1, V1 = KNOWN
WIDTHS = (60, 80, 120, 200)
BUILD = "0.1.0+0123456789ab"
HEAD = Member("d2", "h:3", DrafterInfo(DrafterKind.EAGLE3, "head", None, 512, FeatureNeed((2, 3, -1), 64)), 2)
ESTIMATE = Estimate(2.4, 0.021, 4e-5, 812.0, 655.0)
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def shown(cluster: Cluster, width: int, most_rows: int | None = None) -> str:
    file = io.StringIO()
    Screen(file, width).print(view(cluster, "here:1", most_rows))
    return file.getvalue()


def rows_of(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]


def reporting(number: int) -> Member:
    """A verifier that says all that one can say."""
    drafters = (DrafterReport("drafter-10.0.0.1:50052", 2, 600.0, 1.8, 0.004, 0.0224),)
    report = SpeculationReport("goodput", 32, Plan(), 2.31, 0.71, 0.0212, 4.1e-5, ESTIMATE, drafters)
    name, address = f"verifier-10.0.0.{number}:50051", f"10.0.0.{number}:50051"
    return replace(V1, member_id=name, address=address, plan=Plan(), speculation=report, build=BUILD)


def cluster_of(number: int) -> Cluster:
    """Half of them are verifiers; of one it is that."""
    drafters = [
        replace(D1, member_id=f"drafter-10.0.0.{each}:50052", address=f"10.0.0.{each}:50052", build=BUILD)
        for each in range(number // 2)
    ]
    return Cluster((*map(reporting, range((number + 1) // 2)), *drafters), 3, 2, build=BUILD)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("number", [1, 8, 64])
def test_a_cluster_of_any_size_is_shown_in_any_width_with_nothing_folded(number: int, width: int) -> None:
    cluster = cluster_of(number)
    out = shown(cluster, width)
    assert max(map(len, out.splitlines())) <= width
    assert {row[0] for row in rows_of(out)[:number]} == {member.member_id for member in cluster.members}
    assert not [cell for row in rows_of(out) for cell in row if not cell], "a cell goes on in the next line"
    assert (f"{number} members: " in out) is (number > 8)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_column_that_has_no_room_is_named(width: int) -> None:
    out = shown(cluster_of(4), width)
    number = len(rows_of(out)[0])
    named = re.findall(r"no room for: (.*?)\nspeculation", out, re.DOTALL)
    missing = " ".join(named[0].split()).split(", ") if named else []
    unused = {"reads", "machine", "cores", "rank", "wave", "weights", "adapters"}
    assert number + len(missing) == len(MEMBERS) - len(unused)
    assert set(missing) <= {each.heading for each in MEMBERS} - unused
    assert (not missing) is (width == 200)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)), min_size=1, max_size=9), st.integers(1, 200))
def test_columns_fit_and_the_ones_that_go_matter_least(sizes: list[tuple[int, int]], width: int) -> None:
    columns: Sequence[Column[str]] = [Column("x" * size, "", rank, lambda _: "") for size, rank in sizes]
    kept = fitting(columns, [], width)
    assert len(kept) == 1 or sum(len(each.heading) + 3 for each in kept) + 1 <= width
    gone = [each for each in columns if all(each is not other for other in kept)]
    assert not gone or min(each.rank for each in gone) >= max(each.rank for each in kept)


def test_where_there_is_no_room_for_all_rows_the_rest_is_counted() -> None:
    out = " ".join(shown(cluster_of(64), 80, most_rows=5).split())
    assert "and 59 more rows: --once shows all" in out
    assert "64 members: 32 verifier, 32 ngram; 32 draining; verifiers have 64 sessions of 128" in out


def test_verifiers_come_first_with_their_load_and_heads_say_what_they_read() -> None:
    assert rows_of(shown(Cluster((D1, V1, HEAD), 3, 2), 200)) == [
        ["v1", "verifier", "toy", "-", "127.0.0.1:1", "2/4", "1", "30/40", "1234", "5.2", "70", "ready"],
        ["d1", "ngram", "-", "-", "127.0.0.1:2", "0/8", "0", "-", "0", "0.0", "0", "draining"],
        ["d2", "eagle3", "head", "layers 2, 3, last", "h:3", "0/2", "0", "-", "0", "0.0", "0", "ready"],
    ]


def test_a_rank_is_shown_with_where_it_stands() -> None:
    ranks = (
        replace(V1, member_id="a", group=GroupRank("g", 0, 2), wave=WaveReport(3, parked=True)),
        replace(V1, member_id="b", group=GroupRank("g", 1, 2), wave=WaveReport(3, parked=False)),
        replace(V1, load=Load(), member_id="c", group=GroupRank("g", 1, 2), wave=WaveReport(3, parked=False)),
        replace(V1, member_id="d", group=GroupRank("h", 0, 4)),
    )
    assert [row[-2:] for row in rows_of(shown(Cluster(ranks), 200))] == [
        ["0 of 2", "parked after 3"],
        ["1 of 2", "busy in 3"],
        ["1 of 2", "idle in 3"],
        ["0 of 4", "-"],
    ]


def test_what_speculation_brings_every_verifier_is_shown_and_what_each_drafter_does() -> None:
    greedy = DrafterReport("d1", 2, 600.0, 1.8, 0.004, 0.0224)
    sampled = DrafterReport("d1", 1, 200.0, 0.2, 0.002, sampled=True)
    brought = (greedy, DrafterReport("d2", 0, 37.0), sampled)
    report = SpeculationReport("goodput", 32, Plan(), 2.31, 0.71, 0.0212, 4.1e-5, ESTIMATE, brought)
    v1 = replace(V1, plan=Plan(num_steps=4, num_draft_tokens=11), speculation=report)
    v2 = replace(v1, member_id="v2", plan=Plan(num_steps=0), speculation=SpeculationReport("static"))
    rows = rows_of(shown(Cluster((v2, v1), 0, 0), 120))
    assert ["v1", "goodput", "4 deep, 11 tokens", "2.31", "71%", "21.2", "41", "812", "655", "+24%"] in rows
    assert ["v2", "static", "no drafts", *["-"] * 7] in rows
    assert rows[-2:] == [["d1", "v1", "3", "800", "1.40", "3.5", "22.4"], ["d2", "v1", "0", "37", "0.00", "0.0", "-"]]


def test_why_verifiers_draft_nothing_is_said_once_for_all_of_whom_it_holds() -> None:
    why = NoDrafts(NoDraftsCause.PRICE, 4, 1.9, 1.4)
    report = SpeculationReport("goodput", 32, Plan(), no_drafts=why)
    members = [replace(V1, member_id=f"v{number}", plan=Plan(), speculation=report) for number in range(5)]
    assert f"v0, v1, v2 and 2 more: {why.sentence}" in shown(Cluster(tuple(members)), 120)
    assert f"v0: {why.sentence}" in shown(Cluster((members[0],)), 120)


def test_adapters_are_shown_with_their_ranks_and_sessions_those_in_use_first() -> None:
    french, sql, old = Adapter("french", "ab" * 32, 8), Adapter("sql", "cd" * 32, 64), Adapter("old", "ef" * 32)
    models = [replace(V1.role, adapters=own) for own in ((french, sql), (old, sql))]
    loads = [
        Load(3, adapters=(AdapterLoad("sql", 2),)),
        Load(4, adapters=(AdapterLoad("old", 1), AdapterLoad("sql", 2))),
    ]
    members = [
        replace(V1, member_id=f"v{number}", role=model, load=load)
        for number, (model, load) in enumerate(zip(models, loads, strict=True))
    ]
    out = shown(Cluster((*members, D1)), 200)
    assert rows_of(out)[-3:] == [
        ["sql", "4", "v0, v1", "64", "cd" * 6],
        ["old", "1", "v1", "-", "ef" * 6],
        ["french", "0", "v0", "8", "ab" * 6],
    ]
    assert "french, sql" in out, "of each verifier, too"
    assert "adapters" not in shown(Cluster((V1, D1)), 200)
    told = json.loads(json.dumps(as_object(Cluster((members[1],)), "here:1", datetime.now(UTC))))["members"][0]
    assert told["verifier"]["adapters"][1] == {"name": "sql", "digest": "cd" * 32, "rank": 64}
    assert told["load"]["adapters"][1] == {"name": "sql", "sessions": 2}


def test_what_a_coordinator_allows_of_quotas_is_said_where_it_is_less_than_its_settings_say() -> None:
    sentence = "quotas of clients by shares, as one of 2 coordinators: client_max_requests 4 of 8"
    assert f"\n{sentence}\n" in shown(Cluster((V1,), coordinators=2, quotas=sentence), 120)
    assert "quotas" not in shown(Cluster((V1,), coordinators=2), 120)


def test_members_of_another_build_than_the_coordinator_are_named_and_nobody_else_is() -> None:
    same, other, old = (
        replace(V1, member_id=name, build=build) for name, build in (("s", "1+a"), ("o", "1+b"), ("x", ""))
    )
    out = shown(Cluster((same, other, old), build="1+a"), 200)
    assert "here:1 (1+a): 0 running" in out
    assert [row[-1] for row in rows_of(out)] == ["1+b", "1+a", "-"]
    assert "\no: build 1+b, the coordinator is 1+a\n" in out
    assert "\nx: a build that does not say which it is, and so an older one, the coordinator is 1+a\n" in out
    assert "\ns: " not in out
    assert "the coordinator is" not in shown(Cluster((same, other, old)), 200), (
        "an older coordinator, which does not tell its own"
    )
    assert "the coordinator is" not in shown(Cluster((same, same), build="1+a"), 200)


def test_once_shows_every_member_as_wide_as_columns_says(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("status", "--once", "--address", coordinator.address) == 0
    out = capsys.readouterr().out
    assert f"{coordinator.address}: 2 running, 3 queued; 5 failovers, 7 preemptions so far" in " ".join(out.split())
    assert [row[0] for row in rows_of(out)] == ["v1", "d1"] and max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_in_a_pipe_every_update_is_printed(
    coordinator: Scripted, options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("specsplit.cli.status.time.sleep", pause)
    assert run("status", "--interval-s", "7", *options, "--address", coordinator.address) == 0
    assert pauses == [7, 7, 7]
    out = capsys.readouterr().out
    if options:
        assert [json.loads(line)["running"] for line in out.splitlines()] == [2, 2, 2]
    else:
        assert out.count("2 running, 3 queued") == 3


def names_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {*value, *(name for each in value.values() for name in names_in(each))}
    return {name for each in value for name in names_in(each)} if isinstance(value, list) else set()


def test_as_json_every_name_is_documented() -> None:
    told = json.loads(json.dumps(as_object(Cluster((HEAD, reporting(1))), "here:1", datetime(2026, 1, 2, tzinfo=UTC))))
    assert told["time"] == "2026-01-02T00:00:00.000Z"
    verifier, drafter = told["members"]
    assert set(verifier) - {"verifier"} == set(drafter) - {"drafter"}
    assert drafter["drafter"]["kind"] == "eagle3" and verifier["verifier"]["model"] == "toy"
    assert verifier["load"]["free_pages"] == 30 and verifier["speculation"]["estimate"]["rate"] == 812.0
    said = set(re.findall(r"`(\w+)`", OPERATIONS.read_text()))
    assert names_in({**told, "members": [dict.fromkeys((*verifier, "drafter"))]}) - said == set()


def test_as_json_what_is_no_number_is_null() -> None:
    odd = replace(V1, load=Load(step_ms=float("nan")))
    line = json.dumps(as_object(Cluster((odd,)), "here:1", datetime.now(UTC)), allow_nan=False)
    assert json.loads(line)["members"][0]["load"]["step_ms"] is None


def test_help_says_what_every_column_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status", "--help") == 0
    out = " ".join(capsys.readouterr().out.split())
    for column in (*MEMBERS, *ADAPTERS, *SPECULATION, *DRAFTERS):
        assert f"{column.heading}: " in out
