"""What operators may have a verifier do: empty its prefix cache, and profile its steps."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from smg_grpc_proto.generated import common_pb2

from specsplit.cli.tokens import write
from specsplit.errors import Exhausted, InvalidRequest, NotFound, PermissionDenied, Unsupported
from specsplit.identity import CallerRole
from tests.support.engine_protocol import answer, failure, gateway, request
from tests.support.toys import letter
from tests.verifier.test_gateways import SLOW, letters, serving, verifier

PROMPT = letters("abcdefghijklmnop" * 2 + "a")


async def test_a_flush_drops_what_no_session_uses(alphabet: Path) -> None:
    async with verifier(alphabet, **SLOW) as stub:
        await answer(stub, request(PROMPT, max_tokens=1))
        _, (known,) = await answer(stub, request(PROMPT, max_tokens=1))
        assert known.cached_tokens == 32
        flushed = await stub.FlushCache(common_pb2.FlushCacheRequest())
        assert (flushed.success, flushed.message) == (True, "2 cached pages were dropped")
        _, (unknown,) = await answer(stub, request(PROMPT, max_tokens=1))
        assert unknown.cached_tokens == 0
        call = stub.Generate(request((*PROMPT, letter("x")), max_tokens=400, stream=True))
        await call.read()
        flushed = await stub.FlushCache(common_pb2.FlushCacheRequest())
        assert not flushed.success and "that sessions use stay" in flushed.message
        call.cancel()
        flushed = await stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=60))
        assert flushed.success, "it waits for the session to end"


def events_of(folder: Path) -> list[str]:
    """The names of all events in the one profile there."""
    (path,) = folder.iterdir()
    assert path.name.endswith(".pt.trace.json.gz")
    return [event.get("name", "") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]]


async def test_a_profile_of_steps_is_written_where_the_setting_says(alphabet: Path, tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    start, stop = common_pb2.StartProfileRequest(record_shapes=True), common_pb2.StopProfileRequest()
    async with verifier(alphabet, profile_dir=folder, cpu_layers="off") as stub:
        assert isinstance(await failure(stub.StopProfile(stop)), NotFound)
        began = await stub.StartProfile(start)
        assert began.success and str(folder) in began.message
        assert isinstance(await failure(stub.StartProfile(start)), Exhausted)
        await answer(stub, request(PROMPT, max_tokens=3))
        ended = await stub.StopProfile(stop)
        assert ended.success and str(folder) in ended.message
        assert any(name.startswith("aten::") for name in events_of(folder)), "operations of the engine's own thread"
        assert isinstance(await failure(stub.StopProfile(stop)), NotFound)


async def test_a_profile_is_over_after_so_many_steps(alphabet: Path, tmp_path: Path) -> None:
    async with verifier(alphabet, profile_dir=tmp_path, cpu_layers="off") as stub:
        await stub.StartProfile(common_pb2.StartProfileRequest(num_steps=2, activities=["CPU"]))
        await answer(stub, request(letters("a"), max_tokens=60))
        await stub.StopProfile(common_pb2.StopProfileRequest())
    assert sum(name == "aten::embedding" for name in events_of(tmp_path)) == 2


async def test_profiles_are_refused_by_name_where_there_is_no_folder_or_no_gpu(alphabet: Path, tmp_path: Path) -> None:
    start = common_pb2.StartProfileRequest
    async with verifier(alphabet) as stub:
        for call in (stub.StartProfile(start()), stub.StopProfile(common_pb2.StopProfileRequest())):
            error = await failure(call)
            assert isinstance(error, Unsupported) and "profile_dir of the verifier is not set" in str(error)
    async with verifier(alphabet, profile_dir=tmp_path) as stub:
        error = await failure(stub.StartProfile(start(output_dir="/elsewhere")))
        assert isinstance(error, Unsupported) and error.field == "output_dir"
        error = await failure(stub.StartProfile(start(activities=["TPU"])))
        assert isinstance(error, InvalidRequest) and error.field == "activities"


async def test_operators_and_the_coordinator_alone_may_have_it_done(alphabet: Path, tmp_path: Path) -> None:
    write(tmp_path, {"alice": CallerRole.CLIENT, "member": CallerRole.MEMBER, "operator": CallerRole.OPERATOR})
    flush = common_pb2.FlushCacheRequest()
    async with serving(alphabet, tokens_file=tmp_path / "members/tokens.toml") as service:
        for name in ("operators/operator", "members/member"):
            async with gateway(service.server.bound, tmp_path / f"{name}.token") as stub:
                assert (await stub.FlushCache(flush)).success
        async with gateway(service.server.bound, tmp_path / "clients/alice.token") as stub:
            assert isinstance(await failure(stub.FlushCache(flush)), PermissionDenied)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), 1e9])
async def test_a_time_out_of_range_is_refused(alphabet: Path, seconds: float) -> None:
    async with verifier(alphabet) as stub:
        error = await failure(stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=seconds)))
        assert isinstance(error, InvalidRequest) and error.field == "timeout_s"
