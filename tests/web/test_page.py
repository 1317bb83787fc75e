"""The page in a real browser, over a real cluster: members, the tree of a watched request, keys, colours, nothing from elsewhere."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from specsplit.build import build
from specsplit.cli.local import LocalCluster
from specsplit.errors import SpecsplitError
from specsplit.membership import Draining, GroupRank, Heartbeat, Register, WaveReport
from specsplit.rpc import dial_blocking
from specsplit.v1.cluster_pb2 import JoinRequest
from specsplit.v1.cluster_pb2_grpc import ClusterServiceStub
from specsplit.values import Adaptive, Control, Load, Plan, PlanChanges
from specsplit.wire.cluster import report_to_wire
from tests.support.toys import alphabet_target

from .browser import CHROMIUM, NOT_HERE, Tab, browsing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=NOT_HERE), pytest.mark.timeout(300)]

STATES = ("root", "accepted", "rejected", "drafted", "bonus")


class Shown:
    """A cluster whose coordinator has a page."""

    def __init__(self, folder: Path) -> None:
        erring = alphabet_target(folder / "erring", wrong={"m": "x"})
        self._lines: list[str] = []
        self.cluster = LocalCluster(
            alphabet_target(folder / "alphabet"),
            erring,
            drafters=["standalone", "ngram"],
            coordinator={"web_listen": "127.0.0.1:0"},
            verifier={"adaptive": "static", "paced_step_base_ms": 60.0},
            listener=lambda name, line: self._lines.append(line),
        )

    @property
    def url(self) -> str:
        return next(found[1] for line in self._lines if (found := re.search(r"page on (http://\S+/)", line)))

    @contextmanager
    def request(self, request_id: str, drafter: str = "standalone") -> Iterator[None]:
        """While in here a request runs."""
        left = threading.Event()
        plan = PlanChanges(num_steps=3, topk=3, num_draft_tokens=6)

        def run() -> None:
            with self.cluster.client() as client:
                for _ in client.stream("abc", request_id=request_id, max_tokens=480, drafter=drafter, plan=plan):
                    if left.is_set():
                        return

        thread = threading.Thread(target=run, name=request_id)
        thread.start()
        try:
            yield
        finally:
            left.set()
            thread.join(30)


@pytest.fixture(scope="module")
def shown(forked: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    shown = Shown(tmp_path_factory.mktemp("models"))
    with shown.cluster:
        yield shown


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    with browsing() as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab, shown: Shown) -> Iterator[Tab]:
    """The page, opened anew; it must not have complained when the test is over."""
    browser.errors.clear()
    browser.resize(1280)
    browser.prefer(prefers_color_scheme="light")
    browser.open(shown.url)
    browser.until("document.querySelector('#connection').textContent === 'live'")
    yield browser
    assert browser.errors == []


def test_members_and_the_plan_in_force_are_shown(tab: Tab) -> None:
    members = tab.until(
        "[...document.querySelectorAll('[data-member]')].map(each => each.dataset.member)",
        lambda found: len(found) == 4,
    )
    assert members == ["coordinator", "verifier-0", "ngram-1", "standalone-0"]
    text = tab.evaluate("document.querySelector('#cluster').innerText")
    assert "drafter · standalone" in text and "drafter · ngram" in text and "verifier · alphabet" in text
    assert "sessions" in text and "KV" in text and "steps/s" in text
    assert build() in tab.evaluate("document.querySelector('#summary').innerText")
    assert "build" not in text, "told where it is another than the coordinator's"
    plan = tab.until("document.querySelector('#plan').innerText", lambda text: "depth 5" in text)
    assert "tokens a step 16" in plan and "controller static" in plan


@contextmanager
def joined(shown: Shown, rank: int, wave: WaveReport) -> Iterator[None]:
    """While in here a rank of a group of three is in the cluster, and says so of its wave."""
    left = threading.Event()
    with shown.cluster.client() as client:
        model = client.model_info()

    def reports() -> Iterator[JoinRequest]:
        yield report_to_wire(Register(f"rank-{rank}", "127.0.0.1:9", model, 4, group=GroupRank("g", rank, 3)))
        yield report_to_wire(wave)
        heartbeat = report_to_wire(Heartbeat(Load(sessions=int(rank == 0)), plan=Plan(4, 2, 8)))
        yield heartbeat
        while not left.wait(0.3):
            yield heartbeat
        yield report_to_wire(Draining())

    with dial_blocking(shown.cluster.address) as channel:
        directives = ClusterServiceStub(channel).Join(reports())
        next(directives)
        try:
            yield
        finally:
            left.set()
            deque(directives, maxlen=0)


def test_the_ranks_of_a_group_stand_in_one_frame_which_says_what_the_group_and_each_rank_does(
    tab: Tab, shown: Shown
) -> None:
    frame, ranks = (
        "document.querySelector('[data-group=g] header')?.innerText ?? ''",
        "[...document.querySelectorAll('.rank')]",
    )
    with joined(shown, 0, WaveReport(3, parked=False)), joined(shown, 1, WaveReport(3, parked=False)):
        tab.until(frame, lambda said: "rank 2 is missing: takes no sessions" in said)
        with joined(shown, 2, WaveReport(2)):
            said = tab.until(frame, lambda said: "in wave 3" in said and "plan" in said)
            assert "group of 3 ranks" in said and "plan: 4 deep, 8 tokens a step" in said
            assert "build –" in tab.evaluate("document.querySelector('[data-member=rank-0]').innerText")
            texts = tab.evaluate(f"{ranks}.map(each => each.innerText)")
            assert texts == ["rank 0 · busy", "rank 1 · idle", "rank 2 · parked"]
            marks = tab.evaluate(f"{ranks}.map(each => getComputedStyle(each, '::before').content)")
            assert len(set(marks)) == 3, "told apart without colours"
    tab.until(frame, lambda said: "no rank is here" in said)
    plan = tab.evaluate("document.querySelector('#drafts-said').innerText")
    assert "tokens a step 16" in plan, "the plan of those who are here, and not of ranks that have left"
    assert tab.evaluate("document.querySelector('#moved').innerText") == "0 failovers · 0 preemptions"


def test_the_plan_is_drawn_over_time_and_so_is_what_the_controller_expects_of_it(tab: Tab, shown: Shown) -> None:
    tab.until("document.querySelector('#drafts-said').innerText", lambda text: "tokens a step 16" in text)
    assert "gives no estimate" in tab.evaluate("document.querySelector('#gain-said').innerText")
    with shown.cluster.client() as client:
        client.set_plan(PlanChanges(num_steps=2), Control(Adaptive.GOODPUT))
    try:
        with shown.request("course"):
            said = tab.until("document.querySelector('#gain-said').innerText", lambda text: "gain " in text)
            assert "Expected of the plan (tokens/s)" in said and "with the plan of the settings" in said
            tab.until("document.querySelector('#plan').innerText", lambda text: "controller goodput · changed" in text)
            tab.until("document.querySelector('#drafts-said').innerText", lambda text: "depth 2" in text)
            tab.until(
                "document.querySelector('[data-member=verifier-0]').innerText", lambda text: "accept length" in text
            )
        depths = tab.evaluate("[...new Set(course.map(each => each.steps))]")
        assert depths.index(5) < depths.index(2), "what was, and what is"
        path = tab.evaluate("document.querySelector('#drafts-course .other').getAttribute('d')")
        assert path.startswith("M") and "V" in path
    finally:
        with shown.cluster.client() as client:
            client.set_plan(reset=True)


def test_every_plot_has_its_unit_its_scale_and_the_time(tab: Tab) -> None:
    plots = tab.evaluate(
        """[...document.querySelectorAll('.plot')].map(plot => [
          plot.querySelector('.unit').innerText, [...plot.querySelectorAll('.y span')].map(each => each.innerText),
          [...plot.querySelectorAll('.x span')].map(each => each.innerText)])"""
    )
    assert len(plots) == 5
    for unit, scale, time_axis in plots:
        assert re.fullmatch(r"\(.+\)", unit)
        assert [float(each.removesuffix("k")) for each in scale] == sorted(map(float, scale), reverse=True)
        assert scale[-1] == "0" and time_axis == ["−2 min", "−1 min", "now"]


WIDER_THAN_THE_WINDOW = """[...document.querySelectorAll('body *')].filter(each =>
  !each.closest('svg, .sr, #text') && each.getBoundingClientRect().right > document.documentElement.clientWidth + 1
).map(each => each.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("width", [320, 768, 1280, 1920])
def test_nothing_is_wider_than_the_window(tab: Tab, shown: Shown, width: int) -> None:
    tab.resize(width)
    with shown.request("a-request-with-quite-a-long-name-of-its-own"):
        tab.until("document.querySelector('#speculation').dataset.drafts === 'yes' && snapshots.length > 3")
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert tab.evaluate(WIDER_THAN_THE_WINDOW) == []


def test_the_tree_takes_no_room_when_nothing_is_drafted_and_the_page_says_why(tab: Tab, shown: Shown) -> None:
    height = "document.querySelector('#speculation').offsetHeight"
    tab.until("document.querySelector('#no-drafts').innerText", lambda said: "no request is running" in said)
    idle = tab.until(height)
    assert idle < 80 and tab.evaluate("document.querySelector('#tree').clientHeight") == 0
    with shown.request("plain", drafter="none"):
        tab.until("snapshots.length >= CALM_STEPS")
        assert tab.evaluate(height) == idle
        tab.until(
            "document.querySelector('#no-drafts').innerText",
            lambda said: said == "no drafts: the request asks for none",
        )
        tab.until(
            "document.querySelector('[data-member=verifier-0]').innerText",
            lambda said: "the request asks for none" in said,
        )
    with shown.request("drafted"):
        tab.until("document.querySelector('#tree').clientHeight > 200")
        assert tab.evaluate("document.querySelector('#no-drafts').offsetHeight") == 0
    with shown.request("plain again", drafter="none"):
        tab.until(height, lambda pixels: pixels == idle)


def test_nothing_jumps_while_a_request_comes_runs_and_ends(tab: Tab, shown: Shown) -> None:
    places = """[...document.querySelectorAll('.panel, .plot, h2, h3, .axes, .member, #requests tr, #refused tr')].map(each => {
      const { x, y, width } = each.getBoundingClientRect();
      return [each.tagName + each.className.replace(/empty|watched/, '').trim(), x, y, width];
    })"""
    tab.until("document.querySelectorAll('[data-member]').length >= 4")
    tab.evaluate(
        "window.shifts = 0; new PerformanceObserver(list => list.getEntries().forEach(entry => (shifts += entry.value)))"
        ".observe({ type: 'layout-shift' }); 0"
    )
    before = tab.evaluate(places)
    with shown.request("still"):
        tab.until("document.querySelector('#requests').innerText.includes('still') && snapshots.length > 8")
        assert tab.evaluate(places)[: len(before)] == before
    tab.until("watched.endedAt > 0")
    assert tab.evaluate(places)[: len(before)] == before
    assert tab.evaluate("shifts") < 0.01, "less than a hundredth of the window moved"


@pytest.mark.parametrize("width", [320, 800, 1280, 1920])
def test_nothing_moves_when_members_join_and_leave(tab: Tab, shown: Shown, width: int) -> None:
    places = """[...document.querySelectorAll('.panel, .plot, #requests tr, #refused tr')].map(each => {
      const { x, y, width, height } = each.getBoundingClientRect();
      return [each.id || each.className, x, y, width, height];
    })"""
    tab.resize(width)
    tab.until("document.querySelectorAll('[data-member]').length >= 4")
    before = tab.evaluate(places)
    with joined(shown, 0, WaveReport()), joined(shown, 1, WaveReport()), joined(shown, 2, WaveReport()):
        tab.until("document.querySelectorAll('[data-group=g] .rank').length === 3")
        assert tab.evaluate(places) == before
        assert tab.evaluate("document.querySelector('#cluster .scroll').scrollHeight") > 400, (
            "all are there to scroll to"
        )
    tab.until("document.querySelector('[data-group=g] header')?.innerText.includes('no rank is here')")
    assert tab.evaluate(places) == before


def test_refused_requests_stand_beside_those_that_ran_and_push_none_out(tab: Tab, shown: Shown) -> None:
    with shown.cluster.client() as client:
        client.generate("abc", request_id="ran", max_tokens=2)
        for number in range(12):
            with suppress(SpecsplitError):
                client.generate("abc", request_id=f"refused-{number}", max_tokens=10**6)
    tab.until("document.querySelector('#refused').innerText.includes('refused-11')")
    ran = tab.evaluate("document.querySelector('#requests').innerText")
    assert "ran" in ran and "refused" not in ran
    assert tab.evaluate("document.querySelector('#refused').innerText").count("refused-") == 4


def test_the_tree_of_a_request_is_drawn_with_every_kind_of_node(tab: Tab, shown: Shown) -> None:
    has_all = f"{json.dumps(STATES)}.every(state => snapshots.some(p => p.nodes?.some(node => node.state === state)))"
    with shown.request("letters"):
        tab.until(has_all)
        tab.until("document.querySelector('#requests').innerText.includes('letters')")
        assert "letters" in tab.evaluate("document.querySelector('#caption').textContent")
        text = tab.until("document.querySelector('#text').textContent", lambda text: len(text) > 30)
        tab.evaluate("pause(true)")
        for state in STATES:
            tab.evaluate(f"show(snapshots.findIndex(p => p.nodes.some(node => node.state === '{state}')))")
            node = tab.until(f"document.querySelectorAll('.node[data-state={state}]').length")
            assert node >= 1
    assert text in "abcdefghijklmnopqrstuvwxyz" * 30
    assert tab.evaluate("document.querySelectorAll('#text .draft').length") > 0
    assert tab.until("document.querySelector('#length').textContent", lambda text: text == "–" or float(text) > 1)


def test_kinds_of_nodes_are_told_apart_by_shape_and_mark_and_not_by_colour_alone(tab: Tab, shown: Shown) -> None:
    with shown.request("shapes"):
        tab.until("snapshots.some(p => p.nodes?.some(node => node.state === 'rejected'))")
        looks = tab.evaluate(
            f"""(() => {{
              pause(true);
              return {json.dumps(STATES)}.map(state => {{
                show(snapshots.findLastIndex(p => p.nodes.some(node => node.state === state)));
                const node = document.querySelector(`.node[data-state=${{state}}]`), box = node.querySelector('.box');
                const style = getComputedStyle(box);
                return [style.strokeDasharray, style.strokeWidth, box.getAttribute('rx'),
                        node.querySelector('.mark').textContent, node.querySelector('title').textContent];
              }});
            }})()"""
        )
    shapes = [tuple(look[:4]) for look in looks]
    assert len(set(shapes)) == len(STATES)
    assert len({(dash, width, corner) for dash, width, corner, _ in shapes}) == len(STATES), "even without the marks"
    for state, look in zip(STATES, looks, strict=True):
        assert f": {state}" in look[4]


def test_keys_alone_pause_and_go_back_through_the_steps(tab: Tab, shown: Shown) -> None:
    with shown.request("keys"):
        tab.until("snapshots.length > 8")
        tab.evaluate("document.querySelector('#pause').focus()")
        tab.press(" ", " ")
        assert tab.until("document.querySelector('#pause').getAttribute('aria-pressed')", lambda said: said == "true")
        at = tab.evaluate("shown")
        assert tab.evaluate("(document.querySelector('#history').focus(), document.activeElement.id)") == "history"
        for _ in range(3):
            tab.press("ArrowLeft")
        assert tab.until("shown", lambda now: now == at - 3) == at - 3
        before = tab.evaluate("document.querySelector('#caption').textContent")
        time.sleep(0.3)
        assert tab.evaluate("document.querySelector('#caption').textContent") == before, "paused is paused"
        assert tab.evaluate("getComputedStyle(document.querySelector('#history')).outlineStyle") == "solid"
        tab.evaluate("document.querySelector('#pause').focus()")
        tab.press(" ", " ")
        tab.until("shown === snapshots.length - 1")


def test_a_request_is_chosen_and_the_choice_holds(tab: Tab, shown: Shown) -> None:
    with shown.request("one"):
        tab.until("watched?.id === 'one'")
        with shown.request("two"):
            tab.until("[...document.querySelectorAll('[data-watch]')].length >= 2")
            tab.evaluate(
                "[...document.querySelectorAll('[data-watch]')].find(b => b.ariaLabel === 'watch request two').click()"
            )
            tab.until("watched.id === 'two' && snapshots.length > 0")
        tab.until("document.querySelector('#caption').textContent.endsWith('over')")
        assert tab.evaluate("watched.id") == "two"


def test_the_tree_is_a_table_for_those_who_want_it_read_out(tab: Tab, shown: Shown) -> None:
    with shown.request("table"):
        tab.until("snapshots.length > 3")
        tab.evaluate("document.querySelector('#listing summary').click()")
        tab.evaluate("pause(true)")
        rows = tab.until("[...document.querySelectorAll('#listing tbody tr')].map(row => row.innerText.split('\\t'))")
    assert rows[0][0] == "0" and rows[0][2] == "root"
    assert {row[2] for row in rows} <= set(STATES)


def test_it_follows_the_colours_that_the_system_prefers(tab: Tab) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(ground)
    tab.prefer(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    assert tab.evaluate(ground) != light


def test_nothing_is_asked_of_anybody_but_the_coordinator(tab: Tab, shown: Shown) -> None:
    with shown.request("quiet"):
        tab.until("snapshots.length > 2")
        asked = tab.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert asked and all(name.startswith(shown.url) for name in asked)


def test_a_drafter_that_dies_is_shown_as_lost(tab: Tab, shown: Shown) -> None:
    (ngram,) = [child for child in shown.cluster.drafters if child.name == "ngram-1"]
    ngram.kill()
    tab.until("document.querySelector('[data-member=\"ngram-1\"]')?.dataset.state", lambda state: state == "lost")
    assert "lost" in tab.evaluate("document.querySelector('[data-member=\"ngram-1\"]').innerText")


def test_a_coordinator_that_leaves_is_said_and_not_hidden(tab: Tab, shown: Shown) -> None:
    shown.cluster.coordinator.kill()
    tab.until("document.querySelector('#connection').textContent", lambda said: "does not answer" in said)
    tab.errors[:] = [error for error in tab.errors if "ERR_CONNECTION_REFUSED" not in error]
