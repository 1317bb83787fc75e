"""From what a verifier tells about every step to snapshots: the worked example of docs/tree.md, and laws over any tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.errors import Unavailable
from specsplit.generation.gathering import Gathering
from specsplit.observe import Tracing
from specsplit.sessions import Tokens, WatchedStep
from specsplit.settings import TransportSettings
from specsplit.speculation import Commit, Draft, Grow, Mirror
from specsplit.values import Plan, SpeculationStatistics, TraceScope
from specsplit.wire.watching import Watched, watch_event, watch_response
from specsplit_coordinator.members.verifier_client import VerifierClient
from specsplit_coordinator.page import watching
from specsplit_coordinator.page.watching import NODES_SHOWN, Snapshot, Speculation, watch
from specsplit_coordinator.requests.request_log import RUNNING
from specsplit_verifier.records.step import Reroot, SessionResult, TreeView
from specsplit_verifier.report.watching import watched_step
from tests.speculation.test_interleavings import MAX_NODES, VOCAB, Wire
from tests.support.eventually import eventually
from tests.support.trees import Seen
from tests.wire.test_watching import steps

if TYPE_CHECKING:
    from .conftest import Cluster, Script, StartCluster

Say = Callable[..., "Script"]
WORDS = dict(enumerate(("cat", "sat", "is", "on", "in", "the", "a", "mat", "mouse")))
IDS = {word: token for token, word in WORDS.items()}


def step(bonus: str, accepted: tuple[int, ...], committed: int = 3, number: int = 1) -> WatchedStep:
    """The tree of docs/tree.md below `cat`; all but `a` and `mat` were verified."""
    tokens = [IDS[word] for word in ("cat", "sat", "is", "on", "in", "the", "a", "mat")]
    edges = (0.0, -0.1, -2.0, -0.2, -1.4, -0.3, -0.2, -0.3)
    verified = (True,) * 6 + (False, False)
    sums = SpeculationStatistics(steps=number, drafted=5 * number, accepted=2 * number)
    return WatchedStep(
        (0, 1, 2, 3, 4, 5, 6, 7), (-1, 0, 0, 1, 1, 3, 2, 5), tokens, edges, verified, accepted, IDS[bonus], committed,
        3 * number - 2, number, Plan(), sums,
    )  # fmt: skip


def states(snapshot: Snapshot) -> dict[str, str]:
    return {node["text"]: node["state"] for node in snapshot["nodes"]}


def test_a_hit_shows_what_became_of_every_node_and_what_survives() -> None:
    speculation = Speculation(WORDS.__getitem__)
    snapshot = speculation.step(step("the", (0, 1, 3)))
    assert states(snapshot) == {
        "cat": "root",
        "sat": "accepted",
        "on": "accepted",
        "the": "bonus",
        "is": "rejected",
        "in": "rejected",
        "a": "drafted",
        "mat": "drafted",
    }
    survivals = {node["text"]: node["survival"] for node in snapshot["nodes"]}
    assert survivals["sat"] == pytest.approx(0.9048, abs=1e-4)
    below = speculation.growing()
    assert states(below) == {"the": "root", "mat": "drafted"}
    assert [node["key"] for node in below["nodes"]] == ["n5", "n7"], "the same node keeps its key"
    assert below["nodes"][1]["survival"] == pytest.approx(0.7408, abs=1e-4), "counted from the root"


def test_a_miss_leaves_the_bonus_alone_under_a_key_that_stays() -> None:
    speculation = Speculation(WORDS.__getitem__)
    snapshot = speculation.step(step("mouse", (0, 1, 3)))
    (bonus,) = [node for node in snapshot["nodes"] if node["state"] == "bonus"]
    assert (bonus["text"], bonus["survival"]) == ("mouse", None)
    assert snapshot["nodes"][bonus["parent"]]["text"] == "on"
    (root,) = speculation.growing()["nodes"]
    assert (root["key"], root["state"], root["survival"]) == (bonus["key"], "root", 1.0)


def test_what_is_grown_finds_its_place_or_waits_for_the_next_step() -> None:
    speculation = Speculation(WORDS.__getitem__)
    assert speculation.grown(Grow(0, (1,), (0,), (1,), (-0.1,))) == 0, "nothing is known yet"
    speculation.step(step("the", (0, 1, 3)))
    grow = Grow(1, (8, 9, 10), (0, 7, 4), (IDS["a"], IDS["mouse"], IDS["is"]), (-0.1, -0.3, -1.5))
    assert speculation.grown(grow) == 2, "node 4 was rejected, so what hangs below it has no place"
    assert speculation.grown(grow) == 0
    assert speculation.grown(Grow(0, (11,), (0,), (IDS["is"],), (-0.1,))) == 0, "this root is not the one meant"
    assert speculation.grown(Grow(1, (6,), (5,), (IDS["is"],), (-0.1,))) == 0, "another drafter's, whose ids begin anew"
    below = speculation.growing()["nodes"]
    assert {(node["text"], below[node["parent"]]["text"]) for node in below[1:]} == {
        ("mat", "the"),
        ("a", "the"),
        ("mouse", "mat"),
    }


def test_edges_that_are_given_anew_move_what_hangs_below() -> None:
    speculation = Speculation(WORDS.__getitem__)
    speculation.step(step("on", (0, 1)))
    survivals = {node["text"]: node["survival"] for node in speculation.growing()["nodes"]}
    assert survivals == {"on": 1.0, "the": 0.7408, "mat": 0.5488}
    assert speculation.grown(Grow(1, rescored=(2, 5), new_edges=(-0.1, -0.7))) == 1, "node 2 is gone"
    survivals = {node["text"]: node["survival"] for node in speculation.growing()["nodes"]}
    assert survivals == {"on": 1.0, "the": 0.4966, "mat": 0.3679}


@given(steps())
def test_a_snapshot_is_a_whole_tree_whatever_the_step(of: WatchedStep) -> None:
    speculation = Speculation(str)
    for snapshot in (speculation.step(of), speculation.growing()):
        nodes = snapshot["nodes"]
        assert [node["parent"] < i for i, node in enumerate(nodes)] == [True] * len(nodes)
        assert [node["parent"] for node in nodes].count(-1) == 1
        assert len({node["key"] for node in nodes}) == len(nodes)
        assert snapshot["hidden"] == 0
    found = [node["state"] for node in Speculation(str).step(of)["nodes"]]
    assert (found.count("root"), found.count("bonus")) == (1, 1)
    heir = any(of.parents[i] == of.accepted[-1] and of.tokens[i] == of.bonus for i in range(1, len(of.ids)))
    assert found.count("accepted") == len(of.accepted) - 1
    assert len(found) == len(of.ids) + (not heir)


@given(st.integers(NODES_SHOWN, 3 * NODES_SHOWN))
def test_of_many_nodes_the_likeliest_are_shown_and_the_others_counted(size: int) -> None:
    parents = (-1, *(i // 3 for i in range(size)))
    chain = WatchedStep(
        tuple(range(size + 1)), parents, tuple(range(size + 1)), tuple(-0.1 * i for i in range(size + 1)),
        (True,) * 4 + (False,) * (size - 3), (0,), 10**6, 1, 0, 1, Plan(), SpeculationStatistics(1),
    )  # fmt: skip
    snapshot = Speculation(str).step(chain)
    assert len(snapshot["nodes"]) == NODES_SHOWN
    assert snapshot["hidden"] == size + 2 - NODES_SHOWN
    assert [node["state"] for node in snapshot["nodes"]].count("rejected") == 3


class WatchedMirror(Mirror):
    """A mirror whose verifier tells a page of every step and grow, over the wire."""

    def __init__(self) -> None:
        super().__init__(7, root_token=0, root_position=3, max_nodes=MAX_NODES, vocab_size=VOCAB)
        self.page = Speculation(str)
        self.exact = False
        """Whether the page has been told of a step, and since then of no grow that an earlier root was meant by."""

    def tell(self, event: Watched) -> None:
        told, _ = watch_event(watch_response(event, 0))
        _ = self.page.grown(told) if isinstance(told, Grow) else self.page.step(told)

    def grow(self, grow: Grow) -> int:
        live = super().grow(grow)
        self.tell(grow)
        self.exact = self.exact and grow.commits == self.commits
        return live

    def commit(self, draft: Draft, path: Sequence[int], bonus: int) -> tuple[Commit, bool]:
        tree = TreeView(*self.listed())
        commit, hit = super().commit(draft, path, bonus)
        output = Tokens(commit.tokens, len(path) - 1, SpeculationStatistics(commit.number))
        result = SessionResult(7, Plan(), draft, path, bonus, True, None, output, reroot=Reroot((commit,)))
        self.tell(watched_step(result, tree))
        self.exact = True
        return commit, hit


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_tree_of_the_page_is_the_mirrors_but_for_late_nodes_until_the_next_step(data: st.DataObject) -> None:
    wire = Wire()
    wire.mirror = mirror = WatchedMirror()
    for _ in range(data.draw(st.integers(1, 20))):
        data.draw(st.sampled_from([wire.grow, wire.rescore, wire.step]))(data)
        if data.draw(st.booleans()):
            wire.deliver_commit()
        for _ in range(data.draw(st.integers(0, 2))):
            wire.deliver_grow()
        shown, live = Seen(mirror.page.tree).snapshot(), Seen(mirror.tree).snapshot()
        if mirror.exact:
            assert shown == live
        elif mirror.commits:
            assert shown[1] == live[1]
            assert without_parents(shown[2]) <= without_parents(live[2])


def without_parents(nodes: dict[int, tuple[int, int, float]]) -> set[tuple[int, int, float]]:
    """(id, token, edge) of each: a late node may be the root, which gives it an id that the page does not know."""
    return {(node_id, token, edge) for node_id, (_, token, edge) in nodes.items()}


async def snapshots(cluster: Cluster, number: int, shown: list[Snapshot] | None = None) -> list[Snapshot]:
    """All of them, in the end; `shown` has them as they come."""
    shown = [] if shown is None else shown
    async with AsyncExitStack() as stack:
        client = VerifierClient(TransportSettings(), Tracing("coordinator", TraceScope()), Gathering(0))
        stack.push_async_callback(client.close)
        watched = watch(cluster.tokenizer, client, cluster.coordinator.requests, number)
        assert watched is not None
        stream = await stack.enter_async_context(aclosing(watched))
        async for snapshot in stream:
            shown.append(snapshot)
        return shown


def pieces(shown: list[Snapshot]) -> list[str]:
    return [piece for snapshot in shown for piece, _ in snapshot.get("text", [])]


async def test_a_request_is_watched_from_its_queue_to_its_end_and_no_token_is_left_out(
    cluster: Cluster, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "HOLD_S", 0.11)
    grow = Grow(2, (8,), (7,), (IDS["is"],), (-1.0,))
    running = asyncio.create_task(_generate(cluster))
    await eventually(lambda: cluster.coordinator.requests.requests)
    seen = asyncio.create_task(snapshots(cluster, 1))
    await asyncio.sleep(0.1)
    verifier = await cluster.add_verifier(say((5,), then_wait=True))
    verifier.watched = [(step("the", (0, 1, 3), number=1), 0), (step("the", (0, 1, 3), number=2), 3), (grow, 0)]
    second = asyncio.create_task(_generate(cluster))  # the first found no verifier, and has ended
    with pytest.raises(Unavailable, match="no verifier has joined"):
        await seen
    while not (request := cluster.coordinator.requests.find(2)) or request.state != RUNNING:
        await asyncio.sleep(0.01)
    seen = asyncio.create_task(snapshots(cluster, 2))
    await asyncio.sleep(0.4)
    second.cancel()
    verifier.ended.set()
    shown = await seen
    await asyncio.gather(running, second, return_exceptions=True)
    steps_shown = [snapshot for snapshot in shown if snapshot["kind"] == "step"]
    assert steps_shown[-1]["step"] == 2
    assert sum(snapshot["left_out"] for snapshot in steps_shown) + len(steps_shown) == 2 + 3
    text = [piece for snapshot in shown for piece in snapshot.get("text", [])]
    expected = [cluster.tokenizer.piece(IDS[word]) for word in ("sat", "on", "the")] * 2
    assert "".join(piece for piece, _ in text) == "".join(expected)
    assert [draft for _, draft in text] == [True, True, False] * 2
    assert shown[-1]["kind"] == "end"


async def _generate(cluster: Cluster) -> None:
    try:
        await cluster.client.generate("x", timeout_s=30)
    except Unavailable:
        return


async def test_a_watch_goes_on_with_the_next_verifier_and_shows_no_token_twice(cluster: Cluster, say: Say) -> None:
    first = await cluster.add_verifier(say((5,), then_wait=True))
    first.watched = [(step("the", (0, 1, 3), number=number), 0) for number in (1, 2)]
    request = asyncio.create_task(_generate(cluster))
    await eventually(lambda: first.asked)
    shown: list[Snapshot] = []
    seen = asyncio.create_task(snapshots(cluster, 1, shown))
    await eventually(lambda: len(pieces(shown)) >= 6)
    registry = cluster.coordinator.registry
    registry.remove(registry.verifiers[0], "it was silent for 3.0 s")
    second = await cluster.add_verifier(say((6,), then_wait=True), "v2")
    second.watched = [(step("the", (0, 1, 3), number=number), 0) for number in (2, 3)]
    await eventually(lambda: len(pieces(shown)) >= 9)
    request.cancel()
    second.ended.set()
    await asyncio.wait({request, seen})
    assert pieces(shown) == [cluster.tokenizer.piece(IDS[word]) for word in ("sat", "on", "the")] * 3


async def test_a_verifier_that_is_lost_and_nobody_follows_ends_the_watch_with_a_sentence(
    start_cluster: StartCluster, say: Say
) -> None:
    cluster = await start_cluster(failover_s=0)
    verifier = await cluster.add_verifier(say((5,), then_wait=True))
    request = asyncio.create_task(_generate(cluster))
    await eventually(lambda: verifier.asked)
    seen = asyncio.create_task(snapshots(cluster, 1))
    registry = cluster.coordinator.registry
    registry.remove(registry.verifiers[0], "it was silent for 3.0 s")
    with pytest.raises(Unavailable, match="verifier v1 was lost: it was silent"):
        await seen
    await request
