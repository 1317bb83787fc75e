"""Whatever stands in a name, an address, a text or a sentence of somebody else is shown as it is, and obeyed by nobody."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import RenderableType

from specsplit.cli import cluster_view, demo, logprobs, plan, trace
from specsplit.cli.failures import leave
from specsplit.cli.paint import Painter, summary
from specsplit.cli.plan_view import InForce
from specsplit.cli.say import say
from specsplit.cli.screen import Screen
from specsplit.cli.up import forward
from specsplit.client import Delta, Result
from specsplit.errors import Unavailable
from specsplit.membership import Cluster, Member, PlanInForce, TracingInForce
from specsplit.values import DrafterInfo, DrafterKind, ModelInfo, TokenLogprob
from tests.support.hostile import FORBIDDEN, HOSTILE, SHOWN, made

MEMBERS = tuple(made(Member, role=made(role)) for role in (ModelInfo, DrafterInfo))


def printed(*given: RenderableType) -> str:
    """What a very wide screen shows."""
    file = io.StringIO()
    Screen(file, width=3_000).print(*given)
    return file.getvalue()


def cluster() -> Cluster:
    return made(Cluster, members=MEMBERS)


def demo_table() -> RenderableType:
    run = demo._Run(made(Result), 1.0)  # pyright: ignore[reportPrivateUsage]
    return demo._table(DrafterKind.NGRAM, run, run)  # pyright: ignore[reportPrivateUsage]


VIEWS: dict[str, tuple[Callable[[], RenderableType], int]] = {
    "status": (lambda: cluster_view.view(cluster(), HOSTILE), 9),
    "plan": (lambda: InForce(made(PlanInForce), MEMBERS[:1]), 2),
    "logprobs": (lambda: logprobs.table([made(TokenLogprob)]), 0),
    "demo": (demo_table, 0),
    "a string": (lambda: HOSTILE, 1),
}
"""Each with how often it shows such a text at least."""


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_shows_every_text_of_others_as_it_is(name: str) -> None:
    make, least = VIEWS[name]
    shown = printed(make())
    assert shown.count(SHOWN) >= least
    assert not [order for order in FORBIDDEN if order in shown]


LINES: dict[str, Callable[[], None]] = {
    "plan": lambda: say(plan.sentence(made(PlanInForce))),
    "trace": lambda: say(trace.sentence(made(TracingInForce))),
    "generate": lambda: say(summary(made(Result)), err=True),
    "up": lambda: forward(HOSTILE, HOSTILE),
    "say": lambda: say(HOSTILE),
    "a failure": lambda: _leave(Unavailable(HOSTILE)),
}


def _leave(error: Unavailable) -> None:
    with pytest.raises(SystemExit):
        leave(error)


@pytest.mark.parametrize("name", LINES)
def test_every_line_is_one_line_without_orders_to_the_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    LINES[name]()
    shown = "".join(capsys.readouterr())
    assert shown.count("\n") == 1 and shown.endswith("\n")
    assert not [order for order in FORBIDDEN if order in shown]
    assert "[/x][bold]" in shown or name in ("plan", "trace")


def test_a_terminal_shows_an_answer_with_its_lines_and_obeys_nothing_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = io.StringIO()
    Painter(Screen(file, width=200)).paint(Delta(f"a\tb\n{HOSTILE}", (1,)))
    shown = file.getvalue()
    assert "b\x1b[0m\n" in shown and r"[/x][bold]:smile:[fd00::1]\x1b[2J\x9b2J" in shown
    assert not [order for order in FORBIDDEN if order in shown]


def test_a_pipe_gets_an_answer_byte_for_byte() -> None:
    file = io.StringIO()
    Painter(Screen(file)).paint(Delta(HOSTILE, (1,)))
    assert file.getvalue() == HOSTILE
