"""`specsplit plan` and `specsplit trace`: what they ask for, and what they print."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import RenderableType

from specsplit.cli.plan_view import InForce
from specsplit.cli.screen import Screen
from specsplit.membership import PlanInForce, TracingInForce
from specsplit.values import SERVICES, Adaptive, Control, Plan, PlanChanges, SpeculationReport, TraceChanges
from tests.client.scripted import MEMBERS, Scripted
from tests.support.command import run


@pytest.mark.parametrize(
    ("arguments", "sent", "printed"),
    [
        (
            ["plan", "--adaptive", "goodput", "--max-draft-tokens", "32"],
            (PlanChanges(), Control(Adaptive.GOODPUT, 32), False),
            "plan: adaptive=goodput max_draft_tokens=32; verifiers: 1\n",
        ),
        (
            ["plan", "--num-steps", "0", "--topk", "2", "--num-draft-tokens", "1", "--wait-budget-us", "9"],
            (PlanChanges(0, 2, 1, 9), Control(), False),
            "plan: num_steps=0 topk=2 num_draft_tokens=1 wait_budget_us=9; verifiers: 1\n",
        ),
        (["plan", "--reset"], (PlanChanges(), Control(), True), "plan: as each verifier is set; verifiers: 1\n"),
        (
            ["trace", "--level", "3", "--ratio", "0.5", "--modules", "drafter, verifier"],
            (TraceChanges(3, 0.5, ("drafter", "verifier")), False),
            "tracing: level=3 ratio=0.5 modules=drafter,verifier; members: 2, and the coordinator\n",
        ),
        (
            ["trace", "--modules", "all", "--level", "0"],
            (TraceChanges(level=0, modules=SERVICES), False),
            "tracing: level=0 modules=coordinator,verifier,drafter; members: 2, and the coordinator\n",
        ),
        (
            ["trace", "--reset"],
            (TraceChanges(), True),
            "tracing: as each service is set; members: 2, and the coordinator\n",
        ),
    ],
)
def test_what_the_options_say_is_sent_and_what_is_in_force_is_printed(
    coordinator: Scripted,
    arguments: list[str],
    sent: tuple[object, ...],
    printed: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*arguments, "--address", coordinator.address) == 0
    assert coordinator.ordered == [sent]
    assert capsys.readouterr().out == printed


def test_without_options_every_part_of_the_plan_in_force_is_shown_with_its_source(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    v1 = MEMBERS[1]
    launched = Plan(num_steps=5, num_draft_tokens=16)
    ema = replace(v1, plan=replace(launched, num_steps=3), speculation=SpeculationReport("ema", launched=launched))
    goodput = SpeculationReport("goodput", 32, launched)
    silent = replace(v1, member_id="v3")
    coordinator.members = (MEMBERS[0], ema, replace(v1, member_id="v2", plan=Plan(), speculation=goodput), silent)
    assert run("plan", "--address", coordinator.address) == 0
    assert coordinator.ordered == [], "looking changes nothing"
    out = capsys.readouterr().out
    assert out.startswith("plan: as each verifier is set; verifiers: 1\n")
    assert rows_of(out) == [
        ["controller", "ema settings", "goodput settings"],
        ["max_draft_tokens", "-", "32 settings"],
        ["num_steps", "3 controller", "5 settings"],
        ["topk", "4 settings", "4 settings"],
        ["num_draft_tokens", "16 settings", "16 settings"],
        ["wait_budget_us", "20000 settings", "20000 settings"],
        ["draft_ahead", "yes settings", "yes settings"],
    ]
    assert "What a request fixes for itself stands above the operator" in out
    assert out.endswith("not heard of yet: v3\n")


def test_verifiers_that_agree_share_a_column_and_those_that_do_not_have_tables_of_their_own_where_it_is_narrow() -> (
    None
):
    said = SpeculationReport("static", launched=Plan())
    same = [replace(MEMBERS[1], member_id=f"v{number}", plan=Plan(), speculation=said) for number in range(6)]
    told = PlanInForce(6, PlanChanges())
    assert "all 6 verifiers" in shown(InForce(told, tuple(same)), 60)
    other = replace(same[1], plan=Plan(num_steps=1))
    narrow = shown(InForce(told, (*same[:1], other, *same[2:])), 60)
    assert "v0, v2, v3 and 2 more" in narrow and narrow.count("setting  ") == 2
    assert shown(InForce(told, (*same[:1], other, *same[2:])), 80).count("setting  ") == 1


def test_as_json_the_plan_in_force_has_every_part_with_its_source(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    said = SpeculationReport("goodput", None, Plan(topk=1))
    coordinator.members = (replace(MEMBERS[1], plan=Plan(num_steps=0, topk=1), speculation=said), MEMBERS[0])
    coordinator.plan = PlanInForce(1, PlanChanges(num_steps=0), Control(Adaptive.GOODPUT))
    assert run("plan", "--json", "--address", coordinator.address) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["told"] == 1 and told["changed"] == {"adaptive": "goodput", "num_steps": 0}
    ((name, plan),) = [each.values() for each in told["verifiers"]]
    assert name == "v1" and plan["controller"] == {"value": "goodput", "source": "operator"}
    assert plan["max_draft_tokens"] == {"value": None, "source": None}
    assert plan["num_steps"] == {"value": 0, "source": "operator"} and plan["topk"] == {
        "value": 1,
        "source": "settings",
    }


def shown(view: RenderableType, width: int) -> str:
    file = io.StringIO()
    Screen(file, width).print(view)
    return file.getvalue()


def rows_of(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]


def test_what_the_operator_said_is_told_from_what_the_verifier_does_by_itself() -> None:
    plan = Plan(num_steps=3, topk=2, num_draft_tokens=8)
    told = PlanInForce(1, PlanChanges(num_steps=3, wait_budget_us=7), Control(Adaptive.GOODPUT, 16))
    member = replace(MEMBERS[1], plan=plan, speculation=SpeculationReport("goodput", 16, Plan(topk=2)))
    assert [row[1] for row in rows_of(shown(InForce(told, (member,)), 60))] == [
        "goodput operator",
        "16 operator",
        "3 operator",
        "2 settings",
        "8 controller",
        "20000 settings",  # the verifier has not said yet that it obeys
        "yes settings",
    ]


def test_without_options_the_changes_of_what_is_traced_are_shown_and_nothing_is_changed(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.tracing = TracingInForce(2, TraceChanges(level=2))
    assert run("trace", "--address", coordinator.address) == 0
    assert capsys.readouterr().out == "tracing: level=2; members: 2, and the coordinator\n"
    assert coordinator.ordered == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["plan", "--adaptive", "oracle"], "'oracle' is not one of 'static', 'ema', 'goodput'"),
        (["plan", "--max-draft-tokens", "0"], "max_draft_tokens: is 0, expected 1..256"),
        (["plan", "--num-steps", "few"], "--num-steps"),
        (["plan", "--topk=-1"], "plan.topk: is -1"),
        (["trace", "--level=-1"], "trace_level: is -1"),
        (["trace", "--modules", ""], "trace_modules: is empty, expected some of coordinator, verifier, drafter"),
        (["trace", "--bogus"], "--bogus"),
        (["plan", "--reset", "--json"], "json: shows what is in force; leave it out"),
    ],
)
def test_a_bad_option_exits_2_with_one_line(
    coordinator: Scripted, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, "--address", coordinator.address) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert named in err


def test_where_nobody_listens_one_line_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "--num-steps", "1", "--address", "127.0.0.1:9") == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "start one with specsplit up" in err


def test_a_bound_of_goodput_beside_another_controller_is_refused_before_anybody_is_dialled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("plan", "--adaptive", "static", "--max-draft-tokens", "8") == 2
    assert "max_draft_tokens: bounds goodput, and adaptive is static" in capsys.readouterr().err
