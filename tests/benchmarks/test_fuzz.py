"""What the fuzz part of the fire draws, and what it takes for a fault; one server of this process, no others."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from rich.console import Console

from benchmarks.context import Context
from benchmarks.fire.fire import Fire
from benchmarks.fire.fuzz import borders, calls, servers
from benchmarks.fire.fuzz import storm as storms
from benchmarks.fire.fuzz.__main__ import arguments
from benchmarks.fire.fuzz.calls import HEALTH, REFLECTION, SILENT_S, Ended, Manner, Method, call, methods_of
from benchmarks.fire.fuzz.case import Case
from benchmarks.fire.fuzz.corpus import Conversation, Corpus
from benchmarks.fire.fuzz.generated import kind_of
from benchmarks.fire.fuzz.ground import ROLES, Ground
from benchmarks.fire.fuzz.memory import MOST_GROWTH, Memory
from benchmarks.fire.fuzz.part import replay
from benchmarks.fire.fuzz.relay import relayed
from benchmarks.fire.fuzz.scene import Spite
from benchmarks.fire.fuzz.storm import Storm
from benchmarks.fire.fuzz.tally import Tally
from benchmarks.known import Known
from benchmarks.ports import free_ports
from specsplit.cli.tokens import write
from specsplit.rpc import CLUSTER_SERVICE, COORDINATOR_SERVICE, DRAFTER_SERVICE, VERIFIER_SERVICE
from specsplit.rpc.permissions import PERMISSIONS
from specsplit.v1 import common_pb2, drafter_pb2
from specsplit.wire.limits import MAX_NAME
from tests.rpc.toy import serving

METHODS = methods_of(COORDINATOR_SERVICE, CLUSTER_SERVICE, VERIFIER_SERVICE, DRAFTER_SERVICE, HEALTH, REFLECTION)
MODEL_INFO = next(each for each in METHODS if each.name == "CoordinatorService.GetModelInfo")
GENERATE = next(each for each in METHODS if each.name == "CoordinatorService.Generate")
OPEN = drafter_pb2.DraftRequest(
    events=[drafter_pb2.DraftRequestEvent(session_id=1, open=drafter_pb2.OpenEvent(token_ids=[1, 2, 3], max_nodes=9))]
).SerializeToString()


def spite(seed: int, **how: int) -> Spite:
    return Spite.of(random.Random(seed), **how)


def test_every_method_that_a_server_has_is_fuzzed() -> None:
    assert {each.path for each in METHODS} >= set(PERMISSIONS)


def test_a_case_draws_the_same_again_and_no_other_case_does() -> None:
    cases = [
        Case(1, "client", 7),
        Case(1, "client", 7),
        Case(1, "client", 8),
        Case(2, "client", 7),
        Case(1, "drafter", 7),
    ]
    drawn = [Spite.of(each.chance()).message(OPEN, kind_of(drafter_pb2.DraftRequest), kept=0.0) for each in cases]
    assert drawn[0] == drawn[1] and len(set(drawn)) == 4
    assert cases[0].name == "client:7"


def test_generated_messages_set_every_field_of_every_request_and_answer() -> None:
    for method in METHODS:
        for kind in (method.request, method.answer):
            found, generator = set[str](), spite(3, most=300).generator
            for _ in range(400):
                _note(generator.message(kind), found)
            assert {field.full_name for field in kind.fields} <= found, method.name


def _note(message: Message, found: set[str]) -> None:
    """Add the names of the fields that are set, those of messages inside too."""
    for field, value in message.ListFields():
        found.add(field.full_name)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                _note(inner, found)


def test_values_stand_at_the_borders() -> None:
    chance = random.Random(1)
    request_id = cast("FieldDescriptor", GENERATE.request.fields_by_name["request_id"])
    lengths = {len(cast("str", borders.scalar(chance, request_id, 10_000))) for _ in range(2_000)}
    assert lengths >= {0, MAX_NAME - 1, MAX_NAME, MAX_NAME + 1}
    top_k = cast("FieldDescriptor", common_pb2.Sampling.DESCRIPTOR.fields_by_name["top_k"])
    numbers = {borders.scalar(chance, top_k, 1) for _ in range(5_000)}
    assert numbers >= {0, 1, 2**31, 2**32 - 1}
    assert all(0 <= cast("int", number) < 2**32 for number in numbers)
    floats = Counter(str(borders.number(chance)) for _ in range(2_000))
    assert floats.keys() >= {"nan", "inf", "-inf", "-0.0"}


def test_changed_messages_are_messages_still_and_spoiled_ones_often_are_not() -> None:
    kind, drawn = kind_of(drafter_pb2.DraftRequest), spite(5)
    changed = [drawn.mutator.changed(OPEN, kind) for _ in range(200)]
    assert all(_reads(data, kind) for data in changed) and len(set(changed)) > 100
    spoiled = [drawn.mutator.spoiled(OPEN) for _ in range(200)]
    assert 0 < sum(_reads(data, kind) for data in spoiled) < 100


def _reads(data: bytes, kind: Descriptor) -> bool:
    try:
        GetMessageClass(kind)().ParseFromString(data)
    except DecodeError:
        return False
    return True


def test_a_shuffled_conversation_drops_doubles_and_exchanges() -> None:
    drawn, said = spite(2), [b"a", b"b", b"c", b"d"]
    found = [drawn.mutator.shuffled(said, [b"x"]) for _ in range(300)]
    assert {len(each) for each in found} >= {0, 1, 2, 3, 4, 5}
    assert any(sorted(each) == said and each != said for each in found), "exchanged"
    assert any(first == second for each in found for first, second in pairwise(each)), "doubled"
    assert any(b"x" in each for each in found), "of another conversation"
    assert said == [b"a", b"b", b"c", b"d"]


def test_a_corpus_is_read_as_it_was_written(tmp_path: Path) -> None:
    corpus = Corpus(
        [Conversation("/a/B", [b"\xff\x00"], [b"1", b"2"]), Conversation("/a/B", [b"q"]), Conversation("/a/C")]
    )
    corpus.write(tmp_path / "folder" / "corpus.jsonl")
    again = Corpus.read(tmp_path / "folder" / "corpus.jsonl")
    assert [*again.of("/a/B")] == [*corpus.of("/a/B")] and again.counts == {"/a/B": 4, "/a/C": 0}
    assert again.requests("/a/B") == [b"\xff\x00", b"q"] and again.answers("/a/B") == [b"1", b"2"]


@pytest.mark.parametrize(
    ("method", "code", "sentence", "wrong"),
    [
        (GENERATE, grpc.StatusCode.OK, "", False),
        (GENERATE, grpc.StatusCode.INVALID_ARGUMENT, "sampling.top_p: is 2, expected 0..1", False),
        (GENERATE, grpc.StatusCode.INVALID_ARGUMENT, "no good", True),
        (METHODS[-1], grpc.StatusCode.INVALID_ARGUMENT, "no good", False),
        (GENERATE, grpc.StatusCode.UNKNOWN, "", True),
        (GENERATE, grpc.StatusCode.INTERNAL, "internal error in Generate; the log says more", True),
        (GENERATE, grpc.StatusCode.INTERNAL, "Internal error from Core", False),
        (GENERATE, grpc.StatusCode.CANCELLED, "", False),
        (MODEL_INFO, grpc.StatusCode.CANCELLED, "", True),
    ],
)
def test_what_counts_as_a_bad_end(method: Method, code: grpc.StatusCode, sentence: str, wrong: bool) -> None:
    tally = Tally()
    tally.ended(Case(1, "client", 3), method, Ended(code, sentence, 2, 0))
    assert len(tally.faults) == wrong and tally.sent == 2 and tally.statuses == {method.name: {code.name: 1}}
    assert all(fault.startswith("client:3: ") for fault in tally.faults)


async def test_a_servicer_that_breaks_on_a_message_is_found_out() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    async with serving() as (server, _), grpc.aio.insecure_channel(server.bound) as channel:
        end = await call(channel, MODEL_INFO, [b""], Manner())
        assert (end.code, end.fault(MODEL_INFO)) == (grpc.StatusCode.OK, None)
        end = await call(channel, MODEL_INFO, [b"\xff"], Manner())
        assert (end.code, end.fault(MODEL_INFO)) == (grpc.StatusCode.INVALID_ARGUMENT, None)
    async with serving(broken) as (server, _), grpc.aio.insecure_channel(server.bound) as channel:
        assert "INTERNAL" in str((await call(channel, MODEL_INFO, [b""], Manner())).fault(MODEL_INFO))


async def test_a_relay_passes_a_call_on_and_keeps_both_sides_of_it() -> None:
    async with (
        serving() as (server, _),
        relayed(server.bound) as (address, relay),
        grpc.aio.insecure_channel(address) as channel,
    ):
        request = GetMessageClass(GENERATE.request)(text="hello").SerializeToString()
        end = await call(channel, GENERATE, [request], Manner())
        refused = await call(channel, GENERATE, [b"\xff"], Manner())
    assert (end.code, end.answers) == (grpc.StatusCode.OK, 2)
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert relay.conversations[0] == Conversation(GENERATE.path, [request], [b"", b""])


def test_memory_that_grows_to_the_end_is_a_fault_and_what_fills_at_the_beginning_is_none() -> None:
    steps = range(100)
    leaks = [step * 4 * MOST_GROWTH // 100 for step in steps]
    fills = [min(step * 40 * MOST_GROWTH // 100, 10 * MOST_GROWTH) for step in steps]
    memory = Memory({"leaks": leaks, "fills": fills, "young": leaks[:5]})
    assert [fault.partition(" ")[0] for fault in memory.faults] == ["leaks"]


def test_everybody_shows_the_token_of_his_role(tmp_path: Path) -> None:
    write(tmp_path, ROLES)
    ground = Ground("", "", "", (), "", "", (), tmp_path)
    assert len({ground.shown(name) for name in ROLES}) == len(ROLES)
    for name in ROLES:
        token_file = ground.transport(name).token_file
        assert token_file is not None
        assert ground.shown(name) == (("authorization", f"Bearer {token_file.read_text().strip()}"),)


def stormed(tmp_path: Path, *, short: bool) -> tuple[Fire, Storm]:
    fire = Fire(Context(tmp_path, short, {}, Console(quiet=True)), 5, tmp_path)
    return fire, Storm(Ground("", "", "", (), "", "", (), tmp_path), {}, 5, fire.say)


@pytest.mark.parametrize("short", [True, False])
def test_the_command_that_is_told_plays_the_cases_to_blame_on_a_ground_like_that_of_the_run(
    tmp_path: Path, short: bool
) -> None:
    fire, storm = stormed(tmp_path, short=short)
    storm.tally.fault(Case(5, "client", 17), "ended with INTERNAL: no")
    storm.tally.fault(Case(5, "client", 17), "hung")
    storm.tally.running = {Case(5, "stream", 3), Case(5, "client", 17)}
    storm.tally.suspect()
    storm.tally.running = {Case(5, "noise", 1)}
    storm.tally.suspect()
    _, _, told = replay(fire, storm).partition("python -m benchmarks.fire.fuzz ")
    options = arguments().parse_args(told.split())
    assert (options.seed, options.short, options.only) == (5, short, ["client:17", "stream:3"])
    assert options.corpus == tmp_path / "fuzz" / "corpus.jsonl"
    assert Case.named(5, "client:17") == Case(5, "client", 17)


def test_without_a_case_to_blame_the_run_is_to_be_repeated(tmp_path: Path) -> None:
    told = replay(*stormed(tmp_path, short=True))
    assert told == "no single case is to blame; once more: python -m benchmarks fire fuzz --seed 5 --short"


async def test_a_storm_ends_when_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against ports at which nobody listens."""
    monkeypatch.setattr(storms, "REST_S", 0.0)
    write(tmp_path, ROLES)
    first = free_ports(6)
    at = [f"127.0.0.1:{first + each}" for each in range(6)]
    storm = Storm(Ground(at[0], at[1], at[2], [at[3]], at[4], at[5], (), tmp_path), {}, 5, lambda _: None)
    asyncio.get_running_loop().call_later(0.5, storm.ending.tell, "SIGTERM")
    await storm.run([Known((1,), 0.0, 0, (5,) * 64)], Corpus([]), 600.0)
    assert storm.tally.cases and storm.seconds < 100 and not storm.tally.running


@pytest.mark.parametrize("name", ["client", "client:x", "nobody:3", ":3"])
def test_what_is_no_case_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments().parse_args(["--seed", "1", "--corpus", "x", "--only", name])
    assert f"{name!r} is no case" in capsys.readouterr().err


async def test_how_long_a_call_was_silent_counts_from_its_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            return grpc.stream_stream_rpc_method_handler(self.answers)

        async def answers(self, requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
            yield b""
            await asyncio.sleep(60)

    monkeypatch.setattr(calls, "SILENT_S", 0.05)
    async with servers.serving(Silent()) as address, grpc.aio.insecure_channel(address) as channel:
        end = await call(channel, GENERATE, [b""], Manner(listens_s=1.0))
    assert end.code is grpc.StatusCode.CANCELLED and end.answers == 1 and end.silent_s > 0.05
    assert "hung" in str(end.fault(GENERATE))


def test_a_call_that_was_silent_when_it_was_given_up_hung() -> None:
    cut = Ended(grpc.StatusCode.CANCELLED, "", 1, 3, silent_s=SILENT_S - 1)
    assert cut.fault(GENERATE) is None and "hung" in str(cut.fault(MODEL_INFO))
    silent = Ended(grpc.StatusCode.CANCELLED, "", 1, 3, silent_s=SILENT_S)
    assert "hung" in str(silent.fault(GENERATE))
    assert Ended(grpc.StatusCode.OK, "", 1, 3, silent_s=SILENT_S).fault(GENERATE) is None
