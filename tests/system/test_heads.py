"""Heads in processes of their own: their features travel, and whatever becomes of a drafter, the text is the target's own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.client import Client, Delta
from specsplit.values import DrafterInfo, DrafterKind
from tests.support.slow import slowly
from tests.system.conftest import SERIAL, empty, eventually

TARGET = Path("models/pocket/target")
HEADS = ["eagle3", "dflash", "multi_layer_eagle", "eagle"]
PACED = {"paced_step_base_ms": 10.0, "drafter_lost_after_s": 2.0}
NEW_TOKENS = 160


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return AutoTokenizer.from_pretrained(TARGET).encode(
        "def read(path):\n    with open(path) as file:\n        for line"
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A head of each kind, and a drafter without a head."""
    kinds = [*HEADS, "ngram"]
    with LocalCluster(TARGET, drafts_beside(TARGET), drafters=kinds, verifier=PACED) as started:
        yield started


@pytest.fixture(scope="module")
def plain(cluster: LocalCluster, prompt: list[int]) -> tuple[int, ...]:
    """What the target writes alone."""
    with cluster.client() as client:
        return write(client, prompt, "none")


def write(client: Client, prompt: list[int], drafter: str, **options: float) -> tuple[int, ...]:
    return client.generate(prompt, max_tokens=NEW_TOKENS, ignore_eos=True, drafter=drafter, **options).tokens  # pyright: ignore[reportArgumentType]


def test_every_head_says_what_it_reads(cluster: LocalCluster) -> None:
    with cluster.client() as client:
        roles = {
            member.role.kind: member.role for member in client.cluster().members if isinstance(member.role, DrafterInfo)
        }
    assert set(roles) == {*map(DrafterKind, HEADS), DrafterKind.NGRAM}
    assert roles[DrafterKind.EAGLE].features.layers == roles[DrafterKind.MULTI_LAYER_EAGLE].features.layers == (-1,)
    assert len(set(roles[DrafterKind.EAGLE3].features.layers)) == len(roles[DrafterKind.DFLASH].features.layers) == 3
    assert not roles[DrafterKind.NGRAM].features


@pytest.mark.parametrize("drafter", HEADS)
def test_a_head_drafts_what_the_target_accepts(
    cluster: LocalCluster, prompt: list[int], plain: tuple[int, ...], drafter: str
) -> None:
    with cluster.client() as client:
        result = client.generate(prompt, max_tokens=NEW_TOKENS, ignore_eos=True, drafter=drafter, plan=SERIAL)
    assert result.tokens == plain
    assert result.speculation.accept_length > 2.5
    assert result.done.drafter.startswith(drafter)


def test_kinds_are_chosen_by_request_and_without_a_wish_it_is_one_of_those_that_are_there(
    cluster: LocalCluster, prompt: list[int]
) -> None:
    with cluster.client() as client, ThreadPoolExecutor(4) as pool:
        wished = [pool.submit(client.generate, prompt, max_tokens=40, drafter=kind) for kind in (*HEADS, None)]
        names = [future.result().done.drafter for future in wished]
    assert [name.rsplit("-", 1)[0] for name in names[:-1]] == HEADS
    assert names[-1] in {child.name for child in cluster.drafters}, "which one, goes by what they have brought so far"


def test_cancelling_at_any_moment_frees_everything(cluster: LocalCluster, prompt: list[int]) -> None:
    with cluster.client() as client:
        for drafter in HEADS:
            for after in (0, 1, 4):
                stream = client.stream(prompt * 4, max_tokens=200, drafter=drafter)
                for _, _ in zip(range(after), stream, strict=False):
                    pass
                stream.close()
        eventually(lambda: empty(client.cluster()))


def test_sessions_of_different_heads_end_and_begin_side_by_side(
    cluster: LocalCluster, prompt: list[int], plain: tuple[int, ...]
) -> None:
    def one(i: int) -> bool:
        length = (3, 40, 17, 80)[i % 4]
        with cluster.client() as client:
            result = client.generate(prompt, max_tokens=length, ignore_eos=True, drafter=HEADS[i % 4])
        return result.tokens == plain[:length]

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(one, range(18)))


@pytest.mark.parametrize("drafter", ["eagle3", *slowly("multi_layer_eagle", "eagle")])
def test_a_killed_head_is_replaced_by_one_that_joins_late(
    cluster: LocalCluster, prompt: list[int], plain: tuple[int, ...], drafter: str
) -> None:
    """It is sent again what was sent to the first."""
    cluster.spawn_drafter(drafter)
    cluster.wait_joined()
    tokens, accepted_after = write_and_kill(cluster, prompt, drafter)
    assert tokens == plain
    assert accepted_after > 10, "the other one drafts now"


@pytest.mark.slow
def test_what_is_not_kept_for_a_head_that_joins_late_is_computed_again(
    prompt: list[int], plain: tuple[int, ...]
) -> None:
    forgetful = {"feature_retention": 40, "step_token_budget": 16, "num_draft_tokens": 16}
    started = LocalCluster(TARGET, drafts_beside(TARGET), drafters=["eagle3"] * 2, verifier={**PACED, **forgetful})
    with started as cluster:
        tokens, accepted_after = write_and_kill(cluster, prompt, "eagle3")
        assert tokens == plain
        assert accepted_after > 10, "the other one drafts now"
        with cluster.client() as client:
            eventually(lambda: empty(client.cluster()))


def write_and_kill(cluster: LocalCluster, prompt: list[int], drafter: str) -> tuple[tuple[int, ...], int]:
    """Kill the drafter that drafts in mid-generation: (tokens, drafts accepted after that)."""
    tokens: list[int] = []
    accepted_after = 0
    killed = False
    with cluster.client() as client:
        eventually(lambda: empty(client.cluster()))  # no other drafter is taken for the busy one
        for event in client.stream(prompt, max_tokens=NEW_TOKENS, ignore_eos=True, drafter=drafter, plan=SERIAL):
            if isinstance(event, Delta):
                tokens += event.tokens
                accepted_after += event.num_correct_drafts if killed else 0
            if len(tokens) > 50 and not killed:
                busy = {member.member_id for member in client.cluster().members if member.load.sessions}
                drafting = [child for child in cluster.drafters if child.name in busy and child.alive]
                if len(drafting) == 1:  # else it is being handed over, and the one that it leaves has not told yet
                    drafting[0].kill()
                    killed = True
    assert killed
    return tuple(tokens), accepted_after


@pytest.mark.parametrize("drafter", ["eagle3", *slowly("multi_layer_eagle", "eagle")])
def test_a_head_that_sleeps_never_stalls_a_session(
    cluster: LocalCluster, prompt: list[int], plain: tuple[int, ...], drafter: str
) -> None:
    asleep = [child for child in cluster.drafters if child.name.startswith(f"{drafter}-") and child.alive]
    with cluster.client() as client:
        for child in asleep:
            child.suspend()
        try:
            assert write(client, prompt, drafter, timeout_s=60) == plain
        finally:
            for child in asleep:
                child.resume()


@pytest.mark.parametrize("encoding", ["fp8_e4m3", *slowly("bfloat16", "projected")])
def test_features_travel_in_any_format(
    cluster: LocalCluster, prompt: list[int], plain: tuple[int, ...], encoding: str
) -> None:
    """The others; the tests before have them in the target's own dtype, float32."""
    projected = encoding == "projected"
    options = {"feature_projection": True} if projected else {"feature_format": encoding}
    folder = drafts_beside(TARGET)[DrafterKind.EAGLE3]
    old = [child for child in cluster.drafters if child.name.startswith("eagle3") and child.alive]
    cluster.spawn_drafter("eagle3", **options)
    if projected:
        old += cluster.verifiers
        cluster.spawn_verifier(**{**PACED, "feature_projection": folder})
    cluster.wait_joined()
    for child in old:
        child.kill()
    names = {child.name for child in old}
    with cluster.client() as client:
        # A session that is given a drafter which is gone steps without drafts until it has another.
        eventually(lambda: names.isdisjoint(member.member_id for member in client.cluster().members))
        result = client.generate(prompt, max_tokens=NEW_TOKENS, ignore_eos=True, drafter="eagle3", plan=SERIAL)
    assert result.tokens == plain
    assert result.speculation.accept_length > 2.5


@pytest.mark.parametrize("drafter", HEADS)
def test_a_head_that_is_told_to_leave_leaves_with_zero_and_the_text_goes_on(
    cluster: LocalCluster, prompt: list[int], plain: tuple[int, ...], drafter: str
) -> None:
    (leaving,) = [child for child in cluster.drafters if child.name.startswith(f"{drafter}-") and child.alive]
    tokens: list[int] = []
    with cluster.client() as client:
        for event in client.stream(prompt, max_tokens=NEW_TOKENS, ignore_eos=True, drafter=drafter):
            if isinstance(event, Delta):
                if not tokens:
                    leaving.terminate()
                tokens += event.tokens
        assert tuple(tokens) == plain
        assert leaving.wait(15) == 0
        eventually(lambda: empty(client.cluster()))
