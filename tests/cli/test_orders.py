"""`specsplit plan` and `specsplit trace`: what they ask for, and what they print."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specsplit.cli import app
from specsplit.values import SERVICES, PlanChanges, TraceChanges
from tests.client.scripted import Scripted, serving


@pytest.fixture
def coordinator() -> Iterator[Scripted]:
    with serving() as scripted:
        yield scripted


def run(*arguments: str) -> int:
    """The exit status of `specsplit` with these arguments."""
    with pytest.raises(SystemExit) as left:
        app(list(arguments), prog_name="specsplit")
    return left.value.code if isinstance(left.value.code, int) else 0


@pytest.mark.parametrize(
    ("arguments", "sent", "printed"),
    [
        (["plan"], (PlanChanges(), False), "plan: as each verifier is set; verifiers: 1\n"),
        (
            ["plan", "--num-steps", "0", "--topk", "2", "--num-draft-tokens", "1", "--wait-budget-us", "9"],
            (PlanChanges(0, 2, 1, 9), False),
            "plan: num_steps=0 topk=2 num_draft_tokens=1 wait_budget_us=9; verifiers: 1\n",
        ),
        (["plan", "--reset"], (PlanChanges(), True), "plan: as each verifier is set; verifiers: 1\n"),
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
    sent: tuple[object, bool],
    printed: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*arguments, "--address", coordinator.address) == 0
    assert coordinator.ordered == [sent]
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["plan", "--num-steps", "few"], "--num-steps"),
        (["plan", "--topk=-1"], "plan: "),
        (["trace", "--level=-1"], "tracing: "),
        (["trace", "--modules", ""], "trace_modules: is empty, expected some of coordinator, verifier, drafter"),
        (["trace", "--bogus"], "--bogus"),
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
