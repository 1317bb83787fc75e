"""Ranks of a group over a mesh of threads, with real engines, and the coordinator's own machine for its waves."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from specsplit.clock import SystemClock
from specsplit.errors import InvalidRequest, LoadError, RankLost, SpecsplitError, Unavailable
from specsplit.ranks.lockstep import Lockstep
from specsplit.ranks.wave import PARK_AFTER
from specsplit.settings import VerifierSettings
from specsplit.values import Endpoint, PlanChanges
from specsplit_coordinator.members.group import Group
from specsplit_verifier.edge import service
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.target.runner import Profiled, TargetRunner, profile
from tests.drafter.service_toys import drafter
from tests.support.eventually import eventually
from tests.support.meshes import ThreadMesh, mesh_of
from tests.support.rank_groups import ranks_over
from tests.support.toys import letter
from tests.verifier.conftest import recorded, verifier_over


def alphabet_from(start: str, tokens: int) -> str:
    return "".join(chr(ord("a") + (letter(start) - ord("a") + i) % 26) for i in range(1, tokens + 1))


@pytest.mark.parametrize("adaptive", ["static", "ema", "goodput"])
async def test_sessions_on_any_rank_get_the_text_of_one_that_is_alone_and_the_group_parks_between_them(
    alphabet: Path, adaptive: str
) -> None:
    chance = random.Random(7)
    async with ranks_over(alphabet, 3, adaptive=adaptive) as ranks:

        async def caller() -> None:
            for _ in range(8):
                await asyncio.sleep(chance.random() * 0.15)  # about what it takes a group to park
                start, tokens = chance.choice("abcxyz"), chance.randint(1, 30)
                assert await ranks.write(chance.randrange(3), start, tokens) == alphabet_from(start, tokens)

        async with asyncio.timeout(100):
            await asyncio.gather(caller(), caller())
            for _ in range(5):  # in the moment in which the first of them parks
                await eventually(lambda: any(verifier.engine.rank.report.parked for verifier in ranks.verifiers))
                assert await ranks.write(chance.randrange(3), "a", 3) == "bcd"
            await ranks.parked()
        assert {verifier.engine.rank.report.number for verifier in ranks.verifiers} == {ranks.group.wave}
        assert ranks.group.wave > 5, "it has parked, and been woken"


async def test_a_parked_group_exchanges_nothing(alphabet: Path) -> None:
    async with ranks_over(alphabet, 3) as ranks:
        await ranks.write(1, "a")
        await ranks.parked()
        before = [mesh.exchanges for mesh in ranks.meshes]
        await asyncio.sleep(0.3)
        assert [mesh.exchanges for mesh in ranks.meshes] == before
        assert len(set(before)) == 1 and before[0] > PARK_AFTER


async def test_a_flood_on_one_rank_of_four_is_served_under_its_plan_while_three_are_idle(alphabet: Path) -> None:
    async with ranks_over(alphabet, 4, adaptive="ema", max_sessions=64, kv_tokens=8192) as ranks:
        (launched,) = {verifier.plan for verifier in ranks.verifiers}
        chance = random.Random(3)
        for mesh in ranks.meshes:  # one or the other comes late, to an exchange or from it
            mesh.pause = lambda: time.sleep(chance.choice((0.0, 0.0, 0.0, 0.002)))
        steps = [recorded(verifier) for verifier in ranks.verifiers]
        assert await asyncio.gather(*(ranks.write(2, "a", 60) for _ in range(40))) == [alphabet_from("a", 60)] * 40
        await ranks.parked()
        busy, *idle = steps[2], steps[0], steps[1], steps[3]
        assert any(part.plan != launched for result in busy for part in result.sessions), "what so many sessions want"
        assert any(result.turn is not None and result.turn.woke_s is not None for result in busy)
        assert len({verifier.plan for verifier in ranks.verifiers}) == 1
        switches = {verifier.engine.statistics().plan.switches for verifier in ranks.verifiers}
        assert len(switches) == 1 and switches != {0}, "all of them took it, as often"
        for others in idle:
            turns = [result.turn for result in others if result.idle]
            assert len(turns) == len(others) >= 60
            assert all(turn is not None and turn.imbalance == 4 for turn in turns)


@pytest.mark.parametrize("adaptive", ["static", "goodput"])
async def test_of_two_busy_ranks_with_drafters_neither_sits_a_step_of_the_other_out(
    alphabet: Path, adaptive: str
) -> None:
    prompt, wanted = "abcdefghijklmnopqrstuvwxyz" * 2, alphabet_from("z", 120)
    async with drafter() as (server, _, _), ranks_over(alphabet, 2, adaptive=adaptive) as ranks:
        endpoint = Endpoint("d", server.bound)
        steps = [recorded(verifier) for verifier in ranks.verifiers]
        assert await asyncio.gather(*(ranks.write(rank, prompt, 120, endpoint) for rank in range(2))) == [wanted] * 2
    for own in steps:
        stepped = [i for i, result in enumerate(own) if not result.idle]
        assert stepped == list(range(stepped[0], stepped[-1] + 1)), "it has rows from its first step to its last"
    assert sum(result.accepted for own in steps for result in own) > 0


async def test_sessions_that_draft_and_verify_in_turn_do_so_beside_another_rank(alphabet: Path) -> None:
    serial = PlanChanges(num_steps=4, topk=2, num_draft_tokens=6, draft_ahead=False, wait_budget_us=20_000_000)
    prompt, wanted = "abcdefghijklmnopqrstuvwxyz" * 2, alphabet_from("z", 60)
    async with drafter() as (server, _, _), ranks_over(alphabet, 2) as ranks:
        steps = recorded(ranks.verifiers[0])
        drafted = ranks.write(0, prompt, 60, Endpoint("d", server.bound), serial)
        assert await asyncio.gather(drafted, ranks.write(1, prompt, 60)) == [wanted] * 2
    assert sum(result.accepted for result in steps) > 30


async def test_a_session_that_the_target_fails_on_ends_alone_and_the_other_ranks_go_on(alphabet: Path) -> None:
    def fault(tokens: torch.Tensor) -> None:
        if bool((tokens == ord("#")).any()):
            raise torch.OutOfMemoryError("none left for this one")

    async with ranks_over(alphabet, 2, fault=fault) as ranks:
        innocent = [ranks.write(rank, start, 40) for rank, start in ((0, "a"), (0, "b"), (1, "c"))]
        *fine, failed = await asyncio.gather(*innocent, ranks.write(0, "#", 9), return_exceptions=True)
        assert fine == [alphabet_from(start, 40) for start in "abc"]
        assert isinstance(failed, SpecsplitError) and "none left for this one" in str(failed)


async def test_a_rank_that_dies_ends_every_rank(alphabet: Path) -> None:
    async with ranks_over(alphabet, 3) as ranks:
        writing = asyncio.ensure_future(ranks.write(0, "a", 400))
        await eventually(lambda: ranks.meshes[0].exchanges > 5)
        ranks.meshes[2].die()
        with pytest.raises(Unavailable):
            await writing
        await eventually(lambda: all(verifier.failed.is_set() for verifier in ranks.verifiers))
        async with asyncio.timeout(60):  # in the middle of a wave: they leave all the same
            await asyncio.gather(*(verifier.drained() for verifier in ranks.verifiers))


async def test_a_rank_whose_engine_dies_ends_its_group_at_once_and_the_others_name_it(alphabet: Path) -> None:
    def fault(tokens: torch.Tensor) -> None:
        if tokens.tolist() in ([[ord("#")]], [[0]]):  # the session, and the trial of the device that follows
            raise RuntimeError("the device is gone")

    async with ranks_over(alphabet, 3, fault=fault) as ranks:
        writing = [asyncio.ensure_future(ranks.write(rank, "a", 400)) for rank in (0, 2)]
        await eventually(lambda: ranks.meshes[0].exchanges > 5)
        for task in [*writing, asyncio.ensure_future(ranks.write(1, "#"))]:
            with pytest.raises(Unavailable, match=r"rank 1 of 3 cannot go on, .*: RuntimeError: the device is gone"):
                await task
        assert all(verifier.failed.is_set() for verifier in ranks.verifiers)


async def test_a_coordinator_that_has_started_anew_wakes_a_group_that_it_never_saw(alphabet: Path) -> None:
    async with ranks_over(alphabet, 3) as ranks:
        await ranks.write(0, "a")
        await ranks.parked()
        before, ranks.group = ranks.group.wave, Group(3)
        ranks.connect()
        assert await ranks.write(1, "a", 3) == "bcd"
        assert ranks.group.wave > before


async def test_a_rank_stays_for_a_wave_that_it_was_told_of_and_its_engine_has_not_begun(alphabet: Path) -> None:
    async with ranks_over(alphabet, 2) as ranks:
        rank = ranks.verifiers[0].engine.rank
        assert rank.may_leave
        rank.hears(1)
        assert not rank.may_leave
        ranks.group.placed()
        await eventually(lambda: rank.may_leave)
        assert rank.report.number == 1
        await ranks.verifiers[0].drained()


async def test_a_verifier_that_is_alone_leaves_when_its_sessions_are_over(alphabet: Path) -> None:
    async with verifier_over(alphabet) as verifier:
        verifier.engine.rank.excused = lambda: False
        async with asyncio.timeout(20):
            await verifier.drained()


async def test_a_parked_rank_refuses_what_cannot_be_without_waking_the_others(alphabet: Path) -> None:
    async with ranks_over(alphabet, 2) as ranks:
        with pytest.raises(InvalidRequest):
            async with asyncio.timeout(60):
                await ranks.write(1, "a", 100_000)
        assert ranks.group.wave == ranks.meshes[1].exchanges - 1 == 0, "but for the exchange at load there was none"


async def test_a_rank_waits_for_the_others_in_turns_without_a_forward_too(alphabet: Path) -> None:
    slow_s = 0.003
    async with ranks_over(alphabet, 2) as ranks:
        steps, mesh = recorded(ranks.verifiers[0]), ranks.meshes[0]
        mesh.pause = partial(time.sleep, slow_s / 2)
        for _ in range(6):
            assert await ranks.write(0, "a", 2) == "bc"
        await ranks.parked()
        turns = mesh.exchanges - 1  # the first is made at load
    ending = PARK_AFTER * ranks.group.wave
    assert sum(result.waited_us for result in steps) >= (turns - ending) * slow_s * 1e6


async def test_what_steps_cost_is_profiled_over_the_rows_of_all_ranks(alphabet: Path) -> None:
    settings, clock = VerifierSettings(model=alphabet), SystemClock()
    runners = [load_target(settings, clock) for _ in range(2)]

    def profiled(runner: TargetRunner, mesh: ThreadMesh) -> list[Profiled]:
        runner.lockstep = Lockstep(mesh, clock)
        return list(profile(runner))

    both = await asyncio.gather(*(asyncio.to_thread(profiled, *each) for each in zip(runners, mesh_of(2), strict=True)))
    alone = [each.tokens for each in profile(load_target(settings, clock))]
    assert [[each.tokens for each in own] for own in both] == [[2 * tokens for tokens in alone]] * 2


def test_a_rank_that_cannot_load_tells_the_others_why(alphabet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = mesh_of(2)
    monkeypatch.setattr(service, "TorchMesh", lambda *_, **__: first)
    settings = VerifierSettings(model=alphabet / "nothing", dp_size=2, coordinator="127.0.0.1:1")
    with pytest.raises(LoadError):
        load_target(settings, SystemClock(), 0)
    with pytest.raises(RankLost, match=r"rank 0 of 2 cannot go on, which ends its group: .*nothing"):
        second.exchange([1])


async def test_ranks_part_in_peace_once_their_group_is_parked(alphabet: Path) -> None:
    async with ranks_over(alphabet, 2) as ranks:
        await ranks.write(0, "a")
    assert [mesh.closed for mesh in ranks.meshes] == [True, True]


async def test_a_rank_that_drains_stays_until_the_others_have_no_sessions(alphabet: Path) -> None:
    async with ranks_over(alphabet, 2) as ranks:
        writing = asyncio.ensure_future(ranks.write(0, "a", 200))
        await eventually(lambda: ranks.meshes[0].exchanges > 5)
        leaving = asyncio.ensure_future(ranks.verifiers[1].drained())
        await writing
        assert not leaving.done()
        await asyncio.wait_for(leaving, 60)
