"""Which rank a process is, and the settings that are its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specsplit.errors import InvalidRequest
from specsplit.ranks.environment import ALONE, RankEnvironment
from specsplit.settings import VerifierSettings

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def settings_with(**values: Any) -> VerifierSettings:
    return VerifierSettings(model=Path("m"), **{"dp_size": 4, "coordinator": "127.0.0.1:1", **values})


def test_ranks_on_one_machine_have_ports_of_their_own_and_every_rank_has_a_name() -> None:
    shared = settings_with(
        listen="127.0.0.1:50051", advertise="localhost:50051", metrics_listen="127.0.0.1:9000", member_id="big"
    )
    own = RankEnvironment.of(shared, TORCHRUN).settings(shared)
    assert (own.listen, own.advertise) == ("127.0.0.1:50052", "localhost:50052")
    assert (own.metrics_listen, own.member_id) == ("127.0.0.1:9001", "big-3")


def test_free_ports_stay_free_and_who_has_no_name_gets_none() -> None:
    shared = settings_with(listen="127.0.0.1:0")
    assert RankEnvironment.of(shared, TORCHRUN).settings(shared) == shared


def test_a_verifier_alone_is_rank_0_and_its_settings_stay() -> None:
    shared = settings_with(dp_size=1, listen="127.0.0.1:50051", member_id="one", coordinator="")
    assert RankEnvironment.of(shared, {}) == ALONE
    assert ALONE.settings(shared) is shared


def test_the_processes_of_a_split_target_have_its_settings_and_a_device_each() -> None:
    shared = settings_with(dp_size=1, tp_size=4, coordinator="", listen="127.0.0.1:50051", member_id="big")
    assert RankEnvironment.of(shared, TORCHRUN).settings(shared) == shared
    on_cuda = shared.model_copy(update={"device": "cuda"})
    assert RankEnvironment.of(on_cuda, TORCHRUN).settings(on_cuda).device == "cuda:1"


def test_each_rank_may_be_several_processes_of_which_the_first_is_the_verifier() -> None:
    shared = settings_with(
        dp_size=2, tp_size=2, listen="127.0.0.1:50051", metrics_listen="127.0.0.1:9000", member_id="big", device="cuda"
    )
    places = [RankEnvironment.of(shared, {**TORCHRUN, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(4)]
    assert [(each.rank, each.follows) for each in places] == [(0, False), (0, True), (1, False), (1, True)]
    own = [each.settings(shared) for each in places]
    assert [(each.listen[-5:], each.metrics_listen[-4:]) for each in own[::2]] == [("50051", "9000"), ("50053", "9002")]
    assert [each.member_id for each in own[::2]] == ["big-0", "big-1"]
    assert [each.device for each in own] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]


def test_no_process_of_a_whole_target_follows() -> None:
    assert not ALONE.follows
    assert not RankEnvironment.of(settings_with(), TORCHRUN).follows


@pytest.mark.parametrize(("agents", "kept"), [("1", "True"), ("2", "False")])
def test_ranks_may_stand_on_several_machines_if_the_store_in_which_they_meet_is_new_with_each_start(
    agents: str, kept: str
) -> None:
    environ = {**TORCHRUN, "GROUP_WORLD_SIZE": agents, "TORCHELASTIC_USE_AGENT_STORE": kept}
    assert RankEnvironment.of(settings_with(), environ) == RankEnvironment(3, 1, size=4, agents=int(agents))


@pytest.mark.parametrize(
    ("values", "environ", "why"),
    [
        ({}, {}, r"dp_size: is 4, but the environment has no RANK and no WORLD_SIZE .*torchrun --nproc-per-node 4"),
        ({"dp_size": 2}, TORCHRUN, r"dp_size: is 2, but WORLD_SIZE in the environment is 4"),
        ({"dp_size": 1}, TORCHRUN, r"dp_size: is 1, but WORLD_SIZE in the environment is 4"),
        ({"coordinator": ""}, TORCHRUN, r"dp_size: is 4, but no coordinator is set"),
        (
            {},
            {**TORCHRUN, "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"},
            r"dp_size: is 4, over several torchrun, .*TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
        ),
        ({}, {**TORCHRUN, "RANK": "x"}, r"RANK: in the environment is 'x', expected a number"),
        ({}, {**TORCHRUN, "GROUP_WORLD_SIZE": "x"}, r"GROUP_WORLD_SIZE: in the environment is 'x', expected a number"),
        ({"dp_size": 1, "tp_size": 2}, TORCHRUN, r"tp_size: is 2, but WORLD_SIZE in the environment is 4"),
        (
            {"tp_size": 2},
            TORCHRUN,
            r"dp_size \* tp_size: is 8, but WORLD_SIZE in the environment is 4; make them equal",
        ),
        ({"dp_size": 2, "tp_size": 2, "coordinator": ""}, TORCHRUN, r"is 4, but no coordinator is set"),
        ({"dp_size": 1, "tp_size": 2}, {}, r"tp_size: is 2, but the environment has no RANK .*--nproc-per-node 2"),
    ],
)
def test_a_group_that_torchrun_has_not_started_is_refused(
    values: dict[str, Any], environ: dict[str, str], why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        RankEnvironment.of(settings_with(**values), environ)


@pytest.mark.parametrize("dismissed", [True, False])
@pytest.mark.parametrize(("size", "agents"), [(1, 1), (2, 1), (2, 2), (1, 2)])
def test_a_rank_leaves_for_good_only_if_the_whole_group_was_told_to_and_has_one_agent(
    size: int, agents: int, dismissed: bool
) -> None:
    for_good = agents == 1 and (size == 1 or dismissed)
    assert RankEnvironment(0, 0, size, agents).status(dismissed=dismissed) == (0 if for_good else 1)
