"""Several levels in one go: the same nodes as one by one, no word to the host in between, and no slot lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specsplit.values import Sampling
from specsplit_drafter.descent.descent import Descent, DeviceLevel
from specsplit_drafter.descent.ranking import Ranking
from specsplit_drafter.drafts.draft_model import DraftModel
from specsplit_drafter.drafts.proposer import Children
from specsplit_drafter.drafts.token_map import CONTEXT_RESERVE
from tests.drafter.descents import PROMPTS, Twin, check, proposer_of

RECURRENT = ["standalone", "eagle", "eagle3", "nextn"]
SAMPLED = Sampling(temperature=1.0, top_k=20, seed=11)
BIASED = replace(SAMPLED, seed=12, min_p=0.01, logit_bias=((3, 0.5), (7, -100.0)))
MIXES = {
    "greedy": (Sampling(), Sampling(), Sampling()),
    "sampled": (SAMPLED, BIASED, replace(SAMPLED, seed=3, temperature=0.5)),
    "mixed": (BIASED, Sampling(), SAMPLED),
}


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(("levels", "width"), [(2, 3), (4, 5), (3, 18)])
def test_levels_in_one_go_are_those_that_come_one_by_one(name: str, mix: str, levels: int, width: int) -> None:
    one, other = (Twin(name, proposer_of(name), MIXES[mix]) for _ in range(2))
    found = check(one, other, levels, width)
    assert [len(children.levels) for children in found] == [levels - 1, min(levels - 1, 1), levels - 1]


class Silent(TorchFunctionMode):
    """Refuses whatever would have the host wait for the device, also on a device that has nothing to wait for."""

    ASKING = (
        "item",
        "tolist",
        "numpy",
        "cpu",
        "nonzero",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__array__",
        "equal",
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        assert name not in self.ASKING, f"the host asks the device for a value: {name}"
        return func(*args, **(kwargs or {}))


class Kernels(TorchDispatchMode):
    """Refuses the kernels below such calls, and those whose shapes hang on values."""

    ASKING = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "unique", "_assert_async")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert not name.startswith(self.ASKING), f"the host asks the device for a value: {name}"
        return func(*args, **(kwargs or {}))


@contextmanager
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Refuse words to the host within `Descent.draw`; how many levels it drew, call by call."""
    draw, drawn = Descent.draw, list[int]()

    def silent(self: Descent, model: DraftModel) -> list[DeviceLevel]:
        with Silent(), Kernels():
            levels = draw(self, model)
        drawn.append(len(levels))
        return levels

    monkeypatch.setattr(Descent, "draw", silent)
    yield drawn


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("mix", MIXES)
def test_nothing_is_asked_of_the_device_before_all_levels_are_drawn(
    name: str, mix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = Twin(name, proposer_of(name), MIXES[mix])
    with silence(monkeypatch) as drawn:
        twin.proposer.expand(twin.frontiers(5), 4)
    assert drawn == [3]


def test_a_word_to_the_host_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranking, "needs_host", lambda self, session: False)
    proposer = proposer_of("standalone")
    twin = Twin("standalone", proposer, [replace(SAMPLED, top_p=0.9)])
    with silence(monkeypatch):
        (error,) = proposer.expand(twin.frontiers(5), 3)
    assert "the host asks the device for a value" in str(error)


@pytest.mark.parametrize(
    "sampling", [replace(SAMPLED, top_p=0.9), replace(SAMPLED, presence_penalty=0.3), Sampling(repetition_penalty=1.2)]
)
def test_a_session_whose_ranking_needs_the_host_draws_one_level_beside_others_that_draw_several(
    sampling: Sampling,
) -> None:
    twin = Twin("standalone", proposer_of("standalone"), [Sampling(), sampling, SAMPLED])
    found = twin.proposer.expand(twin.frontiers(5), 3)
    assert [len(children.levels) for children in found if isinstance(children, Children)] == [2, 0, 2]


def test_heads_with_a_layer_for_every_level_draw_one() -> None:
    proposer = proposer_of("mimo")
    assert proposer.max_levels == 1
    twin = Twin("mimo", proposer, [Sampling()])
    (children,) = proposer.expand(twin.frontiers(5), 4)
    assert isinstance(children, Children)
    assert not children.levels


@pytest.mark.parametrize(("levels", "drawn"), [(1, 0), (2, 1), (3, 2), (4, 2)])
def test_fewer_levels_are_drawn_where_the_pool_has_no_room_for_more(levels: int, drawn: int) -> None:
    proposer = proposer_of("standalone", num_slots=len(PROMPTS[0]) + CONTEXT_RESERVE + 5 * 2 + 3)
    twin = Twin("standalone", proposer, [Sampling()])
    (children,) = proposer.expand(twin.frontiers(5), levels)
    assert isinstance(children, Children)
    assert len(children.levels) == drawn
    assert proposer.pages.used == len(PROMPTS[0]) + 5 * drawn
    proposer.assign_levels((1, 0), [])
    assert proposer.pages.used == len(PROMPTS[0])


def test_what_is_not_settled_is_freed_with_its_session() -> None:
    proposer = proposer_of("eagle")
    twin = Twin("eagle", proposer, [Sampling()] * 2)
    proposer.expand(twin.frontiers(5), 4)
    for session in twin.sessions:
        proposer.close(session.key)
    assert proposer.pages.used == 0
