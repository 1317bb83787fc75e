"""What the fuzz part of the fire draws, and what it takes for a fault; one server of this process, no others."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc.aio import AioRpcError, Metadata
from rich.console import Console

from benchmarks.context import Context
from benchmarks.fire.command import arguments, main
from benchmarks.fire.findings import Findings
from benchmarks.fire.fire import Fire
from benchmarks.fire.fuzz import calls
from benchmarks.fire.fuzz.calls import DRAFT, GENERATE, JOIN, METHODS, SILENT_S, Ended, Manner, Method, call
from benchmarks.fire.fuzz.corpus import Conversation, Corpus
from benchmarks.fire.fuzz.draws import Case, Draws
from benchmarks.fire.fuzz.ground import ROLES, Ground
from benchmarks.fire.fuzz.messages import changed, hostile, kind_of, messages, shuffled, spoiled, values
from benchmarks.fire.fuzz.part import replay
from benchmarks.fire.fuzz.parties import Scene, asking, drafting
from benchmarks.fire.fuzz.peer import Hostility, Peer, Shown, passed_on, remembered, serving
from benchmarks.fire.fuzz.recording import DRAFTER_INFO, NAMES, sharing
from benchmarks.fire.fuzz.storm import Storm
from benchmarks.fire.fuzz.tally import Tally
from benchmarks.fire.leaks import MOST_SWELLING, swellings
from benchmarks.fire.samples import RSS, Life, Samples
from benchmarks.known import Known
from benchmarks.ports import free_ports
from specsplit.cli.tokens import write
from specsplit.membership import Drain, Registered
from specsplit.rpc import COORDINATOR_SERVICE
from specsplit.rpc.permissions import PERMISSIONS
from specsplit.sessions import Begin, Leave
from specsplit.v1 import cluster_pb2, common_pb2, drafter_pb2, verifier_pb2
from specsplit.values import DrafterInfo, DrafterKind
from specsplit.wire.cluster import directive_to_wire
from specsplit.wire.drafter import drafter_info_to_wire
from specsplit.wire.limits import MAX_BIASES, MAX_NAME
from specsplit.wire.sessions import sessions_request_events
from tests.rpc.toy import serving as toy

MODEL_INFO = METHODS[f"/{COORDINATOR_SERVICE}/GetModelInfo"]
REFLECTED = next(each for each in METHODS.values() if not each.is_ours)
OPEN = drafter_pb2.DraftRequest(
    events=[drafter_pb2.DraftRequestEvent(session_id=1, open=drafter_pb2.OpenEvent(token_ids=[1, 2, 3], max_nodes=9))]
).SerializeToString()


def draws(seed: int) -> Draws:
    return Draws(random.Random(seed))


def test_every_method_that_a_server_has_is_fuzzed() -> None:
    assert {*METHODS} >= set(PERMISSIONS)


def test_sessions_that_share_a_stream_are_recorded_each_with_a_begin_and_one_that_is_left() -> None:
    known = [Known((5, 6), 0.0, 1, (7, 8))] * NAMES
    said = [sessions_request_events(each, 2048) for each in sharing(known)]
    assert [[(session, type(event)) for session, event in events] for events in said] == [
        [(1, Begin), (2, Begin)], [(3, Begin)], [(4, Begin)], [(1, Leave)],
    ]  # fmt: skip


def test_a_case_draws_the_same_again_and_no_other_case_does() -> None:
    cases = [
        Case(1, "client", 7),
        Case(1, "client", 7),
        Case(1, "client", 8),
        Case(2, "client", 7),
        Case(1, "drafter", 7),
    ]
    drawn = [hostile(case.draws(), OPEN, DRAFT.request, made=0.5, kept=0.0) for case in cases]
    assert drawn[0] == drawn[1] and len(set(drawn)) == 4
    assert cases[0].name == "client:7"


def test_what_is_drawn_depends_on_nothing_that_was_drawn_before() -> None:
    first = [draws(3)(messages(DRAFT.request)) for _ in range(2)]
    draws(4)(messages(JOIN.request))
    assert first[0] == first[1] == draws(3)(messages(DRAFT.request))


def test_a_case_draws_the_same_in_another_process() -> None:
    script = """
from benchmarks.fire.fuzz.calls import DRAFT, JOIN
from benchmarks.fire.fuzz.draws import Case
from benchmarks.fire.fuzz.messages import hostile
draws = Case(7, "client", 3).draws()
print([hostile(draws, b"", each.request, made=0.5).hex() for each in (DRAFT, JOIN) * 4])
"""
    drawn = Case(7, "client", 3).draws()
    said = [hostile(drawn, b"", each.request, made=0.5).hex() for each in (DRAFT, JOIN) * 4]
    environment = {**os.environ, "PYTHONHASHSEED": "11"}
    told = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str(said)


def test_made_messages_set_every_field_of_every_request_and_answer() -> None:
    drawn = draws(3)
    for kind in {kind.full_name: kind for each in METHODS.values() for kind in (each.request, each.answer)}.values():
        found, wanted = set[str](), {field.full_name for field in kind.fields}
        for _ in range(400):
            found |= {field.full_name for field, _ in drawn(messages(kind)).ListFields()}
            if found >= wanted:
                break
        assert found >= wanted, kind.full_name


def test_values_stand_at_the_borders() -> None:
    drawn = draws(1)
    lengths = {len(drawn(values(GENERATE.request.fields_by_name["request_id"]))) for _ in range(600)}
    assert lengths >= {0, MAX_NAME - 1, MAX_NAME, MAX_NAME + 1}
    sampling = kind_of(common_pb2.Sampling).fields_by_name
    numbers = {drawn(values(sampling["top_k"])) for _ in range(1_000)}
    assert numbers >= {0, 1, 2**31, 2**32 - 1} and all(0 <= number < 2**32 for number in numbers)
    assert {len(drawn(values(sampling["logit_bias"]))) for _ in range(300)} >= {0, MAX_BIASES, MAX_BIASES + 1}
    floats = {str(drawn(values(sampling["top_p"]))) for _ in range(300)}
    assert floats >= {"nan", "inf", "-inf", "-0.0"}
    reasons = kind_of(common_pb2.NoDrafts).fields_by_name["cause"]
    assert {drawn(values(reasons)) for _ in range(200)} >= {-1, 0, 9, 10, 2**31 - 1}, "also those that nobody has"


def test_changed_messages_are_messages_still_and_spoiled_ones_often_are_not() -> None:
    drawn = draws(5)
    others = [drawn(changed(OPEN, DRAFT.request)) for _ in range(200)]
    assert all(_reads(data, DRAFT.request) for data in others) and len(set(others)) > 100
    opened = [drafter_pb2.DraftRequest.FromString(data).events for data in others]
    same_length = {tuple(each.open.token_ids) for some in opened for each in some if len(each.open.token_ids) == 3}
    assert any(sum(map(int.__eq__, each, (1, 2, 3))) == 2 for each in same_length), "one entry of a list"
    spoilt = [drawn(spoiled(OPEN)) for _ in range(200)]
    assert 0 < sum(_reads(data, DRAFT.request) for data in spoilt) < 150 and {b""} < {*spoilt}


def _reads(data: bytes, kind: Descriptor) -> bool:
    try:
        GetMessageClass(kind)().ParseFromString(data)
    except DecodeError:
        return False
    return True


def test_a_shuffled_conversation_drops_doubles_and_exchanges() -> None:
    drawn, said = draws(2), [b"a", b"b", b"c", b"d"]
    found = [drawn(shuffled(said, [b"x"])) for _ in range(300)]
    assert {len(each) for each in found} >= {0, 1, 2, 3, 4, 5}
    assert any(sorted(each) == said and each != said for each in found), "exchanged"
    assert any(first == second for each in found for first, second in pairwise(each)), "doubled"
    assert any(b"x" in each for each in found), "of another conversation"
    assert said == [b"a", b"b", b"c", b"d"]


def test_a_corpus_is_read_as_it_was_written(tmp_path: Path) -> None:
    corpus = Corpus(
        [Conversation("/a/B", [b"\xff\x00"], [b"1", b"2"]), Conversation("/a/B", [b"q"]), Conversation("/a/C")]
    )
    corpus.write(tmp_path / "folder" / "corpus.json")
    again = Corpus.read(tmp_path / "folder" / "corpus.json")
    assert [*again.of("/a/B")] == [*corpus.of("/a/B")] and again.counts == {"/a/B": 4, "/a/C": 0}
    assert again.requests("/a/B") == [b"\xff\x00", b"q"] and again.answers("/a/B") == [b"1", b"2"]


@pytest.mark.parametrize(
    ("method", "code", "sentence", "wrong"),
    [
        (GENERATE, grpc.StatusCode.OK, "", False),
        (GENERATE, grpc.StatusCode.INVALID_ARGUMENT, "sampling.top_p: is 2, expected 0..1", False),
        (GENERATE, grpc.StatusCode.INVALID_ARGUMENT, "no good", True),
        (REFLECTED, grpc.StatusCode.INVALID_ARGUMENT, "no good", False),
        (GENERATE, grpc.StatusCode.UNKNOWN, "", True),
        (GENERATE, grpc.StatusCode.INTERNAL, "internal error in Generate; the log says more", True),
        (GENERATE, grpc.StatusCode.INTERNAL, "Internal error from Core", False),
        (GENERATE, grpc.StatusCode.CANCELLED, "", False),
        (MODEL_INFO, grpc.StatusCode.CANCELLED, "", True),
    ],
)
def test_what_counts_as_a_bad_end(method: Method, code: grpc.StatusCode, sentence: str, wrong: bool) -> None:
    tally = Tally()
    tally.ended(Case(1, "client", 3), method, Ended(code, sentence, 2))
    assert (
        len(tally.faults) == wrong and tally.messages.total() == 2 and tally.statuses == {method.name: {code.name: 1}}
    )
    assert all(fault.startswith("client:3: ") for fault in tally.faults)


async def test_a_servicer_that_breaks_on_a_message_is_found_out() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    async with toy() as (server, _), grpc.aio.insecure_channel(server.bound) as channel:
        end = await call(channel, MODEL_INFO, [b""], Manner())
        assert (end.code, end.fault(MODEL_INFO)) == (grpc.StatusCode.OK, None)
        end = await call(channel, MODEL_INFO, [b"\xff"], Manner())
        assert (end.code, end.fault(MODEL_INFO)) == (grpc.StatusCode.INVALID_ARGUMENT, None)
    async with toy(broken) as (server, _), grpc.aio.insecure_channel(server.bound) as channel:
        assert "INTERNAL" in str((await call(channel, MODEL_INFO, [b""], Manner())).fault(MODEL_INFO))


async def test_a_peer_that_passes_calls_on_keeps_both_sides_of_them() -> None:
    async with toy() as (server, _), grpc.aio.insecure_channel(server.bound) as behind:
        peer = Peer(passed_on(behind, ends := list[Ended]()))
        async with serving(peer) as address, grpc.aio.insecure_channel(address) as channel:
            request = GetMessageClass(GENERATE.request)(text="hello").SerializeToString()
            end = await call(channel, GENERATE, [request], Manner())
            refused = await call(channel, GENERATE, [b"\xff"], Manner())
    assert (end.code, end.answers) == (grpc.StatusCode.OK, (b"", b""))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT and [each.code for each in ends] == [refused.code]
    assert peer.conversations[0] == Conversation(GENERATE.path, [request], [b"", b""])


async def test_a_peer_that_is_hostile_to_whom_it_asks_tells_how_that_one_ended_and_one_that_loses_all_says_nothing() -> (
    None
):
    request, ends = GetMessageClass(GENERATE.request)(text="hello").SerializeToString(), list[Ended]()
    async with toy() as (server, _), grpc.aio.insecure_channel(server.bound) as behind:
        spoils = Hostility(draws(1), broken=1.0, made=0.0, kept=0.0)
        async with serving(Peer(passed_on(behind, ends), None, spoils)) as at, grpc.aio.insecure_channel(at) as channel:
            for _ in range(20):
                await call(channel, GENERATE, [request], Manner())
        silent = Hostility(draws(1), broken=0.0, made=0.0, kept=1.0, lost=1.0)
        async with serving(Peer(passed_on(behind), silent)) as at, grpc.aio.insecure_channel(at) as channel:
            assert not (await call(channel, GENERATE, [request], Manner())).answers
    assert {each.code for each in ends} == {grpc.StatusCode.INVALID_ARGUMENT} and not any(
        each.fault(GENERATE) for each in ends
    )


async def test_a_hostile_coordinator_takes_its_members_in_and_dismisses_none_of_them() -> None:
    said = [directive_to_wire(each).SerializeToString() for each in (Registered(100), Drain())]
    corpus, messages = Corpus([Conversation(JOIN.path, [], said)]), Counter[str]()
    hostility = Hostility(draws(6), broken=0.0, made=0.0, kept=0.5)
    peer = Peer(remembered(corpus, draws(7), most=30), hostility, None, messages)
    async with serving(peer) as address, grpc.aio.insecure_channel(address) as channel:
        ends = [await call(channel, JOIN, [b""], Manner()) for _ in range(5)]
    heard = [[cluster_pb2.JoinResponse.FromString(data) for data in end.answers] for end in ends]
    assert all(each[0].registered.heartbeat_interval_ms == 100 for each in heard)
    assert not any(each.HasField("drain") for some in heard for each in some)
    assert messages == {"ClusterService.Join, answers": sum(len(some) - 1 for some in heard)}


@pytest.mark.parametrize(
    ("text", "ends", "wrong"),
    [
        ((5, 6, 7), "", ""),
        ((5, 6), "", "another text: [5, 6, 5,"),
        ((5,), "no verifier", "a session of an honest verifier ended with"),
    ],
)
async def test_sessions_with_a_hostile_drafter_have_their_text_or_it_is_a_fault(
    tmp_path: Path, text: tuple[int, ...], ends: str, wrong: str
) -> None:
    """The verifier is played by a peer, which says what it is told to and asks no drafter."""

    async def decoded(path: str, requests: AsyncIterator[bytes], shown: Shown) -> AsyncGenerator[bytes, None]:
        async for each in requests:
            count = verifier_pb2.DecodeRequest.FromString(each).stopping.max_tokens
            tokens = verifier_pb2.TokensEvent(token_ids=(text * count)[:count])
            yield verifier_pb2.DecodeResponse(tokens=tokens).SerializeToString()
            if ends:
                raise AioRpcError(grpc.StatusCode.UNKNOWN, Metadata(), Metadata(), ends)

    write(tmp_path, ROLES)
    info = drafter_info_to_wire(DrafterInfo(DrafterKind.NGRAM, "", None, 64)).SerializeToString()
    corpus, tally = Corpus([Conversation(DRAFTER_INFO, [b""], [info])]), Tally()
    async with serving(Peer(decoded)) as verifier:
        ground = Ground("", "", verifier, ["127.0.0.1:1"], "", "", (), tmp_path)
        await drafting(Scene(ground, [Known((1,), 0.0, 0, (5, 6, 7) * 22)], corpus, tally), Case(5, "drafter", 1))
    assert bool(tally.faults) == bool(wrong) and all(f"drafter:1: {wrong}" in fault for fault in tally.faults)


async def test_the_client_library_answers_for_whatever_a_hostile_coordinator_says(tmp_path: Path) -> None:
    made = GetMessageClass(MODEL_INFO.answer)().SerializeToString()
    corpus, tally = (
        Corpus([Conversation(MODEL_INFO.path, [b""], [made]), Conversation(GENERATE.path, [b""], [b"", b""])]),
        Tally(),
    )
    scene = Scene(Ground("", "", "", (), "", "", (), tmp_path), (), corpus, tally)
    for number in range(3):
        await asking(scene, Case(5, "answers", number))
    assert not tally.faults and sum(tally.statuses["the client library"].values()) == 24


def test_memory_that_grows_to_the_end_is_a_fault_and_what_fills_at_the_beginning_is_none() -> None:
    leaks = [step * 4 * MOST_SWELLING / 100 for step in range(100)]
    fills = [min(step * 40 * MOST_SWELLING / 100, 10 * MOST_SWELLING) for step in range(100)]
    taken = {"leaks": leaks, "fills": fills, "young": leaks[:5]}
    samples = Samples({Life(name, 1): [(0.0, {RSS: rss}) for rss in each] for name, each in taken.items()})
    assert {life.name for life, grown in swellings(samples).items() if grown > MOST_SWELLING} == {"leaks"}


def test_everybody_shows_the_token_of_his_role(tmp_path: Path) -> None:
    write(tmp_path, ROLES)
    ground = Ground("", "", "", (), "", "", (), tmp_path)
    assert len({ground.shown(name) for name in ROLES}) == len(ROLES)
    for name in ROLES:
        token_file = ground.transport(name).token_file
        assert token_file is not None
        assert ground.shown(name) == (("authorization", f"Bearer {token_file.read_text().strip()}"),)


def burning(tmp_path: Path, *, short: bool) -> Fire:
    return Fire(Context(tmp_path, short, {}, Console(quiet=True)), 5, tmp_path)


@pytest.mark.parametrize("short", [True, False])
def test_the_command_that_is_told_plays_the_cases_to_blame_on_a_ground_like_that_of_the_run(
    tmp_path: Path, short: bool
) -> None:
    tally = Tally()
    tally.fault(Case(5, "client", 17), "ended with INTERNAL: no")
    tally.fault(Case(5, "client", 17), "hung")
    tally.running = {Case(5, "drafter", 3), Case(5, "client", 17)}
    tally.suspect()
    tally.running = {Case(5, "noise", 1)}
    tally.suspect()
    _, _, told = replay(burning(tmp_path, short=short), tally).partition("python -m benchmarks fire ")
    options = arguments().parse_args(told.split())
    assert (options.part, options.seed, options.short, options.only) == (["fuzz"], 5, short, ["client:17", "drafter:3"])
    assert options.corpus == tmp_path / "fuzz" / "corpus.json"
    assert Case.named(5, "client:17") == Case(5, "client", 17)


def test_without_a_case_to_blame_the_run_is_to_be_repeated(tmp_path: Path) -> None:
    told = replay(burning(tmp_path, short=True), Tally())
    assert told == "no single case is to blame; once more: python -m benchmarks fire fuzz --seed 5 --short"


async def test_a_storm_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """Against ports at which nobody listens."""
    write(tmp_path, ROLES)
    first = free_ports(6)
    at = [f"127.0.0.1:{first + each}" for each in range(6)]
    ground = Ground(at[0], at[1], at[2], [at[3]], at[4], at[5], (), tmp_path)
    fire, tally = burning(tmp_path, short=True), Tally()
    storm = Storm(Scene(ground, [Known((1,), 0.0, 0, (5,) * 64)], Corpus([]), tally), 5, fire.ending)
    began = time.monotonic()
    asyncio.get_running_loop().call_later(0.5, fire.ending.tell, "SIGTERM")
    await storm.run(600.0)
    assert tally.cases and time.monotonic() - began < 100 and not tally.running
    tally.report(findings := Findings("fuzz"))
    assert findings.rows[0]["count"] == tally.messages.total()


@pytest.mark.parametrize("name", ["client", "client:x", "nobody:3", ":3"])
def test_what_is_no_case_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments().parse_args(["fuzz", "--only", name])
    assert f"{name!r} is no case" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["fuzz"],
        ["--seed", "1", "--corpus", "x"],
        ["fuzz", "--seed", "1"],
        ["fuzz", "soak", "--seed", "1", "--corpus", "x"],
    ],
)
def test_cases_without_the_run_that_they_are_of_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--only", "client:3"])
    assert "--only plays cases of an earlier run again" in " ".join(capsys.readouterr().err.split())


async def test_how_long_a_call_was_silent_counts_from_its_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            return grpc.stream_stream_rpc_method_handler(self.answers)

        async def answers(self, requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
            yield b""
            await asyncio.sleep(60)

    monkeypatch.setattr(calls, "SILENT_S", 0.05)
    async with serving(Silent()) as address, grpc.aio.insecure_channel(address) as channel:
        end = await call(channel, GENERATE, [b""], Manner(listens_s=1.0))
    assert end.code is grpc.StatusCode.CANCELLED and len(end.answers) == 1 and end.silent_s > 0.05
    assert "hung" in str(end.fault(GENERATE))


def test_a_call_that_was_silent_when_it_was_given_up_hung() -> None:
    cut = Ended(grpc.StatusCode.CANCELLED, "", 1, silent_s=SILENT_S - 1)
    assert cut.fault(GENERATE) is None and "hung" in str(cut.fault(MODEL_INFO))
    silent = Ended(grpc.StatusCode.CANCELLED, "", 1, silent_s=SILENT_S)
    assert "hung" in str(silent.fault(GENERATE))
    assert Ended(grpc.StatusCode.OK, "", 1, silent_s=SILENT_S).fault(GENERATE) is None


async def test_a_client_that_never_sends_sends_nothing_until_it_hangs_up() -> None:
    async with toy() as (server, _), grpc.aio.insecure_channel(server.bound) as channel:
        began = time.monotonic()
        end = await call(channel, replace(GENERATE, streams_in=True), [], Manner(hangs_up=False, listens_s=0.2))
    assert end.sent == 0 and not end.answers and time.monotonic() - began >= 0.2
