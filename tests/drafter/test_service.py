"""The real drafter on a real port, with a scripted verifier at the other end of the stream."""

from __future__ import annotations

import asyncio
import time
from itertools import product
from pathlib import Path

import grpc
import pytest
import torch
from transformers import AutoModelForCausalLM

from specsplit.clock import SystemClock
from specsplit.draft_events import Close, FeaturesRead, Open, Refuse
from specsplit.errors import LoadError, RankLost
from specsplit.features import FeatureFormat, FeatureLayout
from specsplit.model.heads import Eagle3Head, Head, projection_of, save_head
from specsplit.ranks.mesh import LocalMesh
from specsplit.rpc import from_rpc_error
from specsplit.settings import DrafterSettings
from specsplit.speculation import Commit, Grow
from specsplit.v1 import common_pb2, drafter_pb2, drafter_pb2_grpc
from specsplit.values import DrafterKind, Plan, Sampling, Vocabulary
from specsplit.wire import drafter as wire
from specsplit.wire.limits import MAX_EVENTS
from specsplit_drafter.edge.service import load_table, service_of, telling
from tests.drafter.head_toys import VOCABULARY, ends, event_of, layout_of, saveable
from tests.drafter.service_toys import NGRAM, WAIT_S, Stream, drafter, until
from tests.drafter.toys import open_event, plain_model, tiny_config
from tests.model.conftest import RECURRENT
from tests.support.mtp_target import mtp_target


async def test_it_says_what_it_is() -> None:
    async with drafter() as (_, channel, _):
        response = await drafter_pb2_grpc.DrafterServiceStub(channel).GetDrafterInfo(wire.drafter_info_request())
    info = wire.drafter_info_from_wire(response)
    assert info.kind is DrafterKind.NGRAM
    assert info.vocabulary is None


async def test_a_session_is_grown_committed_and_grown_on() -> None:
    async with drafter() as (_, channel, _):
        stream = Stream(channel)
        stream.send((7, open_event([1, 2, 3, 4, 1, 2], plan=Plan(num_steps=2))))
        grow = await stream.grown(7)
        assert list(grow.tokens)[:3] == [3, 4, 1]
        stream.send((7, Commit(1, grow.ids[0], (3, 4))))  # a hit: node 2 is the root
        after = await stream.grown(7)
        assert after.commits == 1
        assert after.ids[0] > grow.ids[-1]
        stream.send((7, Commit(2, 0, (8,))), (7, Close()))
        await stream.close()


async def test_sessions_of_one_stream_share_messages_and_two_verifiers_may_use_the_same_ids() -> None:
    async with drafter() as (_, channel, _):
        one, other = Stream(channel), Stream(channel)
        one.send((1, open_event([1, 2, 1])), (2, open_event([3, 4, 3])))
        other.send((1, open_event([5, 6, 5])))
        assert (await one.grown(1)).tokens[0] == 2
        assert (await one.grown(2)).tokens[0] == 4
        assert (await other.grown(1)).tokens[0] == 6
        one.break_off()
        other.send((1, Commit(1, 0, (6,))))
        assert (await other.grown(1)).commits == 1
        await other.close()


MALFORMED = {
    "refused as it is read": drafter_pb2.CommitEvent(number=1),
    "refused by its session": drafter_pb2.CommitEvent(number=9, token_ids=[1]),
}


@pytest.mark.parametrize("commit", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_message_ends_only_its_own_session(commit: drafter_pb2.CommitEvent) -> None:
    async with drafter() as (_, channel, _):
        stream = Stream(channel)
        stream.send((1, open_event([1, 2, 1])), (2, open_event([3, 4, 3])))
        await stream.grown(1)
        await stream.grown(2)
        stream.send_raw(drafter_pb2.DraftRequest(events=[{"session_id": 1, "commit": commit}]))
        refusal = await stream.refused(1)
        assert refusal.code in (grpc.StatusCode.INVALID_ARGUMENT.value[0], grpc.StatusCode.ABORTED.value[0])
        assert refusal.message
        stream.send((1, Commit(1, 0, (2,))), (2, Commit(1, 0, (4,))))
        assert (await stream.grown(2)).commits == 1
        await stream.close()


async def test_a_broken_off_stream_frees_its_sessions() -> None:
    async with drafter(NGRAM.model_copy(update={"max_sessions": 1})) as (_, channel, _):
        gone = Stream(channel)
        gone.send((1, open_event([1, 2, 1])))
        await gone.grown(1)
        gone.break_off()
        stream, number = Stream(channel), 0

        async def taken() -> bool:
            nonlocal number
            number += 1
            stream.send((number, open_event([1, 2, 1])))
            return isinstance(await stream.next_of(number), Grow)

        await until(taken)
        await stream.close()


async def test_a_drain_refuses_new_sessions_finishes_the_running_one_and_ends_with_0() -> None:
    async with drafter() as (server, channel, task):
        stream = Stream(channel)
        stream.send((1, open_event([1, 2, 1])))
        await stream.grown(1)
        server.leave()

        async def refused() -> bool:
            stream.send((2, open_event([1, 2, 1])))
            return isinstance(await stream.next_of(2), Refuse)

        await until(refused)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await Stream(channel).call.read()
        assert "draining" in str(from_rpc_error(failed.value))
        stream.send((1, Commit(1, 0, (2,))))
        assert (await stream.grown(1)).commits == 1
        stream.send((1, Close()))
        async with asyncio.timeout(WAIT_S):
            assert await task == 0
            assert await stream.call.code() is grpc.StatusCode.OK, "its verifier sees that it has left in order"


async def test_a_drain_whose_time_is_up_hands_sessions_back() -> None:
    async with drafter(NGRAM.model_copy(update={"drain_s": 0.05})) as (server, channel, task):
        stream = Stream(channel)
        stream.send((1, open_event([1, 2, 1])))
        await stream.grown(1)
        server.leave()
        assert (await stream.refused(1)).code == grpc.StatusCode.UNAVAILABLE.value[0]
        async with asyncio.timeout(WAIT_S):
            assert await task == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    plain_model(tiny_config()).save_pretrained(folder)
    return folder


async def test_a_standalone_drafter_loads_grows_and_refuses_another_vocabulary(folder: Path) -> None:
    async with drafter(DrafterSettings(model=folder, kv_tokens=1024)) as (_, channel, _):
        stream = Stream(channel)
        sampling = Sampling(temperature=1.0, seed=3)
        stream.send((1, Open((1, 2, 3), sampling, Plan(num_steps=2), Vocabulary(32), 32)))
        stream.send((2, open_event([1, 2, 3])))
        refusal = await stream.refused(2)
        assert refusal.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
        assert "32 tokens" in refusal.message
        assert "9 tokens" in refusal.message
        grow = await stream.grown(1)
        stream.send((1, Commit(1, 0, (grow.tokens[0],))))
        assert (await stream.grown(1)).commits == 1
        await stream.close()


async def test_no_sampling_on_the_wire_keeps_a_drafter_from_serving_others(folder: Path, tmp_path: Path) -> None:
    """A head that proposes some tokens only: the others' logits are -inf, and what a temperature does to those is its undoing."""
    head = _some_tokens(tmp_path)
    settings = DrafterSettings(kind=DrafterKind.EAGLE3, model=tmp_path, target=folder, kv_tokens=1024)
    limits: list[dict[str, float]] = [{"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.5}, {}]
    async with drafter(settings) as (_, channel, task):
        stream = Stream(channel)
        for number, (temperature, limit) in enumerate(product([1e39, 1e308, 5e-324, 10_000.0], limits)):
            hostile, honest = 2 * number + 1, 2 * number + 2
            await _sampled(stream, head, hostile, temperature, limit)
            await _served(stream, head, honest)
            assert not task.done(), (temperature, limit)
            stream.send((hostile, Close()), (honest, Close()))
        await stream.close()


async def _sampled(stream: Stream, head: Head, session: int, temperature: float, limit: dict[str, float]) -> None:
    """It is refused, or answered."""
    prompt = [1, 2, 3]
    hostile = drafter_pb2.OpenEvent(
        token_ids=prompt,
        max_nodes=8,
        vocabulary=common_pb2.Vocabulary(size=32),
        sampling=common_pb2.Sampling(temperature=temperature, seed=1, **limit),  # pyright: ignore[reportArgumentType]
        features=wire.open_to_wire(open_event(prompt, features=layout_of(head))).features,
    )
    stream.send_raw(drafter_pb2.DraftRequest(events=[drafter_pb2.DraftRequestEvent(session_id=session, open=hostile)]))
    stream.send((session, event_of(head, prompt, 0, 2)))
    if temperature > 10_000:
        refusal = await stream.refused(session)
        assert refusal.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert "expected a number in [0, 10,000]" in refusal.message
    else:
        assert await stream.next_of(session)


async def _served(stream: Stream, head: Head, session: int) -> None:
    prompt = [1, 2, 3]
    stream.send((session, open_event(prompt, vocabulary=VOCABULARY, features=layout_of(head))))
    assert await stream.next_of(session) == Grow(0, resting=True)
    stream.send((session, event_of(head, prompt, 0, 2)))
    assert await stream.next_of(session) == FeaturesRead(2)
    assert (await stream.grown(session)).ids


def _some_tokens(folder: Path) -> Head:
    """An EAGLE-3 head that proposes 24 of its target's 32 tokens, saved in `folder`."""
    head = Eagle3Head(tiny_config(), ends(), layers=(1, 2), draft_vocab_size=24)
    save_head(head, folder)
    return head


async def test_a_session_whose_numbers_break_is_refused_and_others_are_served(tmp_path: Path) -> None:
    model = plain_model(tiny_config())
    model.model.embed_tokens.weight.data[28] = torch.nan  # one that loading does not look at
    model.save_pretrained(tmp_path)
    async with drafter(DrafterSettings(model=tmp_path, kv_tokens=1024)) as (_, channel, task):
        stream, plan = Stream(channel), Plan(num_steps=1, draft_ahead=False)
        for session, token in ((1, 3), (2, 28), (3, 28), (4, 28), (5, 4)):
            stream.send((session, open_event([1, 2, token], vocabulary=Vocabulary(32), plan=plan)))
        for session in (2, 3, 4):
            refusal = await stream.refused(session)
            assert refusal.code == grpc.StatusCode.INTERNAL.value[0]
            assert "NaN or infinite" in refusal.message
        for session in (1, 5):
            assert (await stream.grown(session)).ids
            stream.send((session, Commit(1, 0, (7,))))
            assert (await stream.grown(session)).commits == 1
        assert not task.done()
        await stream.close()


HEAD_KINDS = {
    "eagle": DrafterKind.EAGLE,
    "eagle3": DrafterKind.EAGLE3,
    "nextn": DrafterKind.EAGLE,
    "mimo": DrafterKind.MULTI_LAYER_EAGLE,
}


@pytest.mark.parametrize(("name", "kind"), HEAD_KINDS.items())
async def test_a_head_loads_reads_features_grows_and_refuses_another_width(
    name: str, kind: DrafterKind, folder: Path, tmp_path: Path
) -> None:
    head = saveable(name)
    save_head(head, tmp_path)
    settings = DrafterSettings(kind=kind, model=tmp_path, target=folder, kv_tokens=1024)
    async with drafter(settings) as (_, channel, _):
        response = await drafter_pb2_grpc.DrafterServiceStub(channel).GetDrafterInfo(wire.drafter_info_request())
        info = wire.drafter_info_from_wire(response)
        assert (info.kind, info.features) == (kind, head.shape.need)
        stream = Stream(channel)
        prompt, layout = [1, 2, 3], layout_of(head)
        stream.send((1, open_event(prompt, vocabulary=VOCABULARY, plan=Plan(num_steps=2), features=layout)))
        assert await stream.grown(1) == Grow(0, resting=True)
        stream.send((1, event_of(head, prompt, 0, 2)))
        assert await stream.next_of(1) == FeaturesRead(2)
        grow = await stream.grown(1)
        prompt.append(grow.tokens[0])
        stream.send((1, Commit(1, 0, (grow.tokens[0],))), (1, event_of(head, prompt, 2, 1)))
        assert FeaturesRead(3) in [await stream.next_of(1), await stream.next_of(1)]
        stream.send((2, open_event(prompt, vocabulary=VOCABULARY, features=FeatureLayout(5))))
        refusal = await stream.refused(2)
        assert refusal.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
        assert f"reads {layout.width} numbers per token" in refusal.message
        assert "gives 5" in refusal.message
        await stream.close()


def test_a_head_may_ask_for_another_format_and_for_projected_features(folder: Path, tmp_path: Path) -> None:
    save_head(saveable("eagle3"), tmp_path)
    settings = DrafterSettings(
        kind=DrafterKind.EAGLE3,
        model=tmp_path,
        target=folder,
        kv_tokens=64,
        feature_format=FeatureFormat.FP8_E4M3,
        feature_projection=True,
    )
    need = load_table(settings, SystemClock()).proposer.info.features
    assert need.projection == projection_of(tmp_path)[1]
    assert need.layout(32, FeatureFormat.FLOAT32) == FeatureLayout(32, FeatureFormat.FP8_E4M3)


def test_mtp_layers_of_a_targets_own_folder_need_no_other(tmp_path: Path) -> None:
    settings = DrafterSettings(kind=DrafterKind.MULTI_LAYER_EAGLE, model=mtp_target(tmp_path), kv_tokens=64)
    info = load_table(settings, SystemClock()).proposer.info
    assert (info.kind, info.features.layer_names) == (DrafterKind.MULTI_LAYER_EAGLE, "last")


def test_a_head_that_cannot_be_loaded_is_refused_with_the_reason(folder: Path, tmp_path: Path) -> None:
    save_head(saveable("eagle3"), tmp_path)
    right = DrafterSettings(kind=DrafterKind.EAGLE3, model=tmp_path, target=folder, kv_tokens=64)
    for change, words in (
        ({"kind": DrafterKind.EAGLE}, "not as eagle"),
        ({"target": tmp_path / "nothing"}, "does not exist"),
        ({"target": None}, "kind eagle3 needs the folder of the target"),
        ({"model": None}, "kind eagle3 needs a model folder"),
    ):
        with pytest.raises(LoadError, match=words):
            load_table(right.model_copy(update=change), SystemClock())


def test_a_draft_with_recurrent_layers_is_refused(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(RECURRENT["short convolutions"]()).save_pretrained(tmp_path)
    settings = DrafterSettings(kind=DrafterKind.STANDALONE, model=tmp_path, kv_tokens=1024)
    with pytest.raises(LoadError, match=r"cannot draft: it has recurrent layers.* or a head"):
        load_table(settings, SystemClock())


async def test_a_folder_that_cannot_be_loaded_ends_it_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="does not exist"):
        await service_of(DrafterSettings(model=tmp_path / "nothing")).start()


def test_a_paced_expansion_takes_its_time() -> None:
    settings = DrafterSettings(kind=DrafterKind.NGRAM, paced_expansion_base_ms=30)
    table = load_table(settings, SystemClock())
    table.handle((1, 1), open_event([1, 2, 1]))
    began = time.monotonic()
    assert table.expand() == 1
    assert time.monotonic() - began >= 0.03


async def test_a_message_with_very_many_malformed_events_ends_the_stream_and_no_other() -> None:
    bad = drafter_pb2.DraftRequestEvent(session_id=1, commit=drafter_pb2.CommitEvent(number=1))
    async with drafter() as (_, channel, _):
        other, one = Stream(channel), Stream(channel)
        other.send((1, open_event([1, 2, 1])))
        await other.grown(1)
        one.send_raw(drafter_pb2.DraftRequest(events=[bad] * 2_000))
        with pytest.raises(grpc.aio.AioRpcError, match="events: has more than 64 malformed entries") as caught:
            await one.close()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        other.send((1, Commit(1, 0, (2,))))
        assert (await other.grown(1)).commits == 1
        await other.close()


async def test_many_refusals_leave_in_messages_that_the_verifier_takes() -> None:
    async with drafter() as (_, channel, _):
        stream = Stream(channel)
        for first in (0, MAX_EVENTS):
            stream.send(*((first + each, Commit(1, 0, (2,))) for each in range(MAX_EVENTS)))
        for session in (0, 2 * MAX_EVENTS - 1):
            assert "never opened" in (await stream.refused(session)).message
        await stream.close()


class Watched(LocalMesh):
    """Notes what the other ranks would read."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def abort(self, why: str) -> RankLost:
        self.told.append(why)
        return super().abort(why)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LoadError("the folder is empty"), "the folder is empty"),
        (RuntimeError("out of memory"), "RuntimeError: out of memory"),
    ],
)
def test_the_other_ranks_are_told_whatever_ends_the_loading_of_one(error: Exception, told: str) -> None:
    mesh = Watched()
    with pytest.raises(type(error), match=str(error)), telling(mesh):
        raise error
    assert mesh.told == [told]
