"""A verifier goes on with other weights while sessions run: what they get is one target's up to some token, and the other's from there."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from specsplit.cli.tokens import write
from specsplit.engine import UpdateWeights
from specsplit.errors import (
    DeadlineExceeded,
    Exhausted,
    Incompatible,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    SpecsplitError,
    Unavailable,
    Unsupported,
)
from specsplit.identity import CallerRole
from specsplit.model.lm.revision import Revision
from specsplit.rpc import dial, from_rpc_error
from specsplit.sessions import DecodeRequest, Finished, Tokens
from specsplit.settings import TransportSettings, VerifierSettings
from specsplit.v1 import common_pb2, verifier_pb2, verifier_pb2_grpc
from specsplit.values import PlanChanges, Sampling, Stopping
from specsplit_verifier.edge.service import read_revision
from specsplit_verifier.edge.updates import Updates
from specsplit_verifier.edge.verifier import Verifier
from tests.support.greedy import greedy_texts
from tests.support.toys import random_target
from tests.verifier.conftest import verifier_over
from tests.verifier.test_gateways import serving

PROMPT = (1, 5, 2, 9, 4, 7, 3, 3, 8, 6, 2, 1, 11, 12, 13, 4, 0, 5)
SLOW = {"paced_step_base_ms": 10.0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("weights")
    random_target(root / "first")
    random_target(root / "second", seed=1)
    random_target(root / "other", vocab_size=17)
    return root


@asynccontextmanager
async def updatable(folders: Path, **settings: Any) -> AsyncIterator[tuple[Verifier, Updates]]:
    given: dict[str, Any] = {"weights_dir": folders, **settings}
    resolved = VerifierSettings(model=folders / "first", **{"adaptive": "static", **given})
    async with verifier_over(folders / "first", **given) as verifier:
        yield verifier, Updates(resolved, partial(read_revision, resolved))


def request(prompt: Sequence[int] = PROMPT, count: int = 60, **sampling: Any) -> DecodeRequest:
    return DecodeRequest("r", tuple(prompt), Sampling(**sampling), Stopping(max_tokens=count), PlanChanges())


async def decoded(verifier: Verifier, wanted: DecodeRequest, seen: list[int] | None = None) -> list[int]:
    tokens: list[int] = [] if seen is None else seen
    async for event in verifier.decode(wanted):
        if isinstance(event, Tokens):
            tokens += event.tokens
        assert isinstance(event, Tokens | Finished), "a session that is computed again need not move"
    return tokens


async def begun(tokens: list[int], count: int = 5) -> None:
    async with asyncio.timeout(60):
        while len(tokens) < count:
            await asyncio.sleep(0.005)


def greedy(folder: Path, count: int) -> list[int]:
    return greedy_texts(folder, [list(PROMPT)], count)[0][len(PROMPT) :]


async def alone(folders: Path, name: str, wanted: DecodeRequest) -> list[int]:
    """What a verifier with these weights from its start decodes."""
    async with verifier_over(folders / name) as verifier:
        return await decoded(verifier, wanted)


async def switched(folders: Path, got: list[int], **sampling: Any) -> int:
    """After how many tokens a session went on with the second weights: those before are the first's."""
    first = await alone(folders, "first", request(**sampling))
    same = next((at for at, (one, other) in enumerate(zip(got, first, strict=True)) if one != other), len(got))
    for at in range(same + 1):
        rest = DecodeRequest(
            "r", (*PROMPT, *got[:at]), Sampling(**sampling), Stopping(max_tokens=60), PlanChanges(), committed=at
        )
        if await alone(folders, "second", rest) == got[at:]:
            return at
    raise AssertionError("it is neither the one nor the other")


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 5}])
async def test_sessions_that_restart_go_on_with_the_other_weights_from_their_tokens_so_far(
    folders: Path, sampling: dict[str, Any]
) -> None:
    async with updatable(folders, **SLOW) as (verifier, updates):
        tokens: list[int] = []
        running = asyncio.create_task(decoded(verifier, request(**sampling), tokens))
        await begun(tokens)
        done = await updates.update(verifier, UpdateWeights("second", restart=True))
        at_least = len(tokens)
        assert done.version == verifier.engine.weights_version == 2
        assert done.message == "the target goes on with second, version 2 of its weights; 1 sessions are computed again"
        got = await running
        fresh = await decoded(verifier, request(**sampling))
    assert 5 <= await switched(folders, got, **sampling) <= at_least + 1
    assert fresh == await alone(folders, "second", request(**sampling)), "nothing of the old weights is cached"


async def test_greedy_output_is_what_transformers_computes_with_the_weights_in_force(folders: Path) -> None:
    async with updatable(folders) as (verifier, updates):
        assert await decoded(verifier, request(count=20)) == greedy(folders / "first", 20)
        await updates.update(verifier, UpdateWeights("second"))
        assert await decoded(verifier, request(count=20)) == greedy(folders / "second", 20)
        await updates.update(verifier, UpdateWeights("first"))
        assert await decoded(verifier, request(count=20)) == greedy(folders / "first", 20)
        assert verifier.engine.weights_version == 3


async def test_sessions_that_drain_end_with_the_weights_before_and_others_wait_for_the_new(folders: Path) -> None:
    async with updatable(folders, **SLOW) as (verifier, updates):
        tokens: list[int] = []
        running = asyncio.create_task(decoded(verifier, request(), tokens))
        await begun(tokens)
        updating = asyncio.create_task(updates.update(verifier, UpdateWeights("second", timeout_s=60)))
        await asyncio.sleep(0)
        with pytest.raises(Exhausted, match="weights are being updated already, to second"):
            await updates.update(verifier, UpdateWeights("second"))
        await updating
        late = await decoded(verifier, request())
        got = await running
    assert got == await alone(folders, "first", request())
    assert late == await alone(folders, "second", request())


async def test_a_drain_that_takes_too_long_leaves_the_weights_as_they_were(folders: Path) -> None:
    async with updatable(folders, **SLOW) as (verifier, updates):
        tokens: list[int] = []
        running = asyncio.create_task(decoded(verifier, request(count=200), tokens))
        await begun(tokens)
        with pytest.raises(DeadlineExceeded, match="1 sessions still run after 0 s, and the weights before stay"):
            await updates.update(verifier, UpdateWeights("second", timeout_s=0))
        assert verifier.engine.weights_version == 1
        other = await decoded(verifier, request(count=20))
        running.cancel()
        await asyncio.wait({running})
    assert other == greedy(folders / "first", 20), "sessions no longer wait"


async def test_a_session_that_was_preempted_ends_with_the_weights_that_it_began_with(folders: Path) -> None:
    """Room for two sessions, but not to their ends: the second to come is preempted, and waits where nobody new may begin."""
    async with updatable(folders, kv_tokens=192, **SLOW) as (verifier, updates):
        one: list[int] = []
        other: list[int] = []

        async def decoded_here(wanted: DecodeRequest, tokens: list[int]) -> list[int]:
            async for event in verifier.decode(wanted):
                if isinstance(event, Tokens):
                    tokens += event.tokens
            return tokens

        running = [
            asyncio.create_task(decoded_here(request(count=100), one)),
            asyncio.create_task(decoded_here(request(PROMPT[::-1], 100), other)),
        ]
        await begun(one)
        await begun(other)
        await updates.update(verifier, UpdateWeights("second", timeout_s=120))
        both = await asyncio.gather(*running)
    assert both == [
        await alone(folders, "first", request(count=100)),
        await alone(folders, "first", request(PROMPT[::-1], 100)),
    ]


async def test_what_cannot_be_taken_is_refused_and_changes_nothing(folders: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(folders / "second", folders / "broken", dirs_exist_ok=True))
    (broken / "model.safetensors").write_bytes(b"no weights")
    cases: list[tuple[str, type[SpecsplitError], str]] = [
        ("nowhere", NotFound, "there is no folder nowhere in weights_dir"),
        ("other", Incompatible, "vocab_size is 17, expected 16"),
        ("broken", SpecsplitError, "cannot be loaded"),
    ]
    async with updatable(folders) as (verifier, updates):
        for name, kind, said in cases:
            with pytest.raises(kind, match=said):
                await updates.update(verifier, UpdateWeights(name))
        assert verifier.engine.weights_version == 1
        assert await decoded(verifier, request(count=20)) == greedy(folders / "first", 20)
    async with updatable(folders, weights_dir=None) as (verifier, updates):
        with pytest.raises(Unsupported, match="weights_dir of the verifier is not set"):
            await updates.update(verifier, UpdateWeights("second"))
    async with updatable(folders, inflate_layers=3) as (verifier, updates):
        with pytest.raises(Unsupported, match="does not go with inflate_layers"):
            await updates.update(verifier, UpdateWeights("second"))


@pytest.mark.parametrize("name", ["", "/etc", "../second", "second/..", "a//b", "second\n", "x" * 257])
def test_a_name_that_leads_out_of_the_folder_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"update\.folder"):
        UpdateWeights(name)


async def test_an_engine_whose_weights_are_broken_ends(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Revision, served: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(Revision, "copy_into", fail)
    async with updatable(folders) as (verifier, updates):
        with pytest.raises(Unavailable, match="its weights are broken: the device is gone"):
            await updates.update(verifier, UpdateWeights("second", restart=True))
        await asyncio.wait_for(verifier.failed.wait(), 60)


async def test_operators_alone_may_update(folders: Path, tmp_path: Path) -> None:
    *_, known = write(tmp_path, {"op": CallerRole.OPERATOR, "me": CallerRole.MEMBER, "cl": CallerRole.CLIENT})
    settings = {"tokens_file": known, "token_file": tmp_path / "members/me.token", "insecure": True}
    asked = verifier_pb2.VerifierServiceUpdateWeightsRequest(update=common_pb2.WeightsUpdate(folder="second"))
    async with serving(folders / "first", weights_dir=folders, **settings) as service:
        async with dial(service.server.bound, of(tmp_path / "clients/cl.token")) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await verifier_pb2_grpc.VerifierServiceStub(channel).UpdateWeights(asked)
            assert isinstance(from_rpc_error(refused.value), PermissionDenied)
        async with dial(service.server.bound, of(tmp_path / "operators/op.token")) as channel:
            answer = await verifier_pb2_grpc.VerifierServiceStub(channel).UpdateWeights(asked)
            assert (answer.version, answer.message) == (2, "the target goes on with second, version 2 of its weights")


def of(token_file: Path) -> TransportSettings:
    return TransportSettings(token_file=token_file, insecure=True)
