"""Laws of ranks that share the pocket target: whatever they do together, the text of a session is what one verifier alone writes.

Sharded sums round otherwise than whole ones, so in principle a tie could be broken otherwise. Over these prompts none is.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from specsplit.client import make_request
from specsplit.model.graphs import Buckets
from specsplit.ranks.lockstep import Agreed, Proposal
from specsplit.sessions import DecodeRequest
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import DrafterKind, Endpoint, Stopping
from specsplit_verifier.edge.verifier import Verifier
from tests.support.drafter_groups import DrafterGroup, pocket_drafter_groups
from tests.support.drafting import POCKET, POCKET_KINDS, endpoint_of, pocket_drafters
from tests.support.eventually import eventually
from tests.support.rank_groups import Ranks, ShardedTargets, sharded_ranks
from tests.support.restless import restless
from tests.support.slow import slowly
from tests.verifier.conftest import decode, recorded, verifier_over

pytestmark = pytest.mark.asyncio(loop_scope="module")
NEW = 14
TEXTS = [
    "def mean(values):\n    total = ",
    "class Reader:\n    def __init__(self, path",
    "import os\n\ndef walk(top):\n    for name in os.listdir(top):\n",
    "    try:\n        value = int(text)\n    except ",
]
WAYS: dict[str, dict[str, object]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 2024},
    "penalised": {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    "seeded and penalised": {"temperature": 1.1, "seed": 5, "repetition_penalty": 1.1, "frequency_penalty": 0.5},
}
KINDS = [None, *POCKET_KINDS]
PATIENT_US = 2_000_000
"""Under a plan that drafts and verifies in turn, drafts come in time on a busy machine too."""


@dataclass(frozen=True)
class Case:
    """One session: who drafts for it, how its tokens are picked, and what it begins with."""

    kind: DrafterKind | None
    way: str
    text: int

    def request(self, prompts: list[list[int]], drafters: Mapping[DrafterKind, Endpoint]) -> DecodeRequest:
        sampling = make_request("", **WAYS[self.way]).sampling  # pyright: ignore[reportArgumentType]
        endpoint = None if self.kind is None else drafters[self.kind]
        stopping = Stopping(NEW, ignore_eos=True)
        return DecodeRequest(f"{self}", prompts[self.text], sampling, stopping, drafter=endpoint)


CASES = [
    Case(kind, way, (row + column) % len(TEXTS)) for row, kind in enumerate(KINDS) for column, way in enumerate(WAYS)
]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.load(POCKET)
    return [list(tokenizer.encode(text)) for text in TEXTS]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drafters() -> AsyncIterator[dict[DrafterKind, Endpoint]]:
    """One of each kind."""
    async with pocket_drafters() as started:
        yield {kind: endpoint_of(drafter) for kind, drafter in started.items()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(prompts: list[list[int]]) -> dict[tuple[str, int], list[int]]:
    """What one verifier with the whole target writes without drafts, by way and text."""
    plain = [Case(None, way, text) for way in WAYS for text in range(len(TEXTS))]
    async with verifier_over(POCKET, kv_tokens=4096) as verifier:
        written = await asyncio.gather(*(decode(verifier, case.request(prompts, {})) for case in plain))
    return {(case.way, case.text): tokens for case, (tokens, _) in zip(plain, written, strict=True)}


@pytest.fixture(scope="module")
def pairs() -> ShardedTargets:
    return ShardedTargets(POCKET, 2)


@pytest.fixture(scope="module")
def fours() -> ShardedTargets:
    return ShardedTargets(POCKET, 4)


@pytest.fixture(scope="module")
def captured() -> ShardedTargets:
    """Two ranks whose smaller forwards are captured."""
    return ShardedTargets(POCKET, 2, buckets=Buckets(32, 4))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drafter_groups() -> AsyncIterator[list[DrafterGroup]]:
    """One of each kind that can be a group."""
    async with pocket_drafter_groups() as groups:
        yield groups


@pytest.mark.parametrize("size", [2, *slowly(1, 4)])
async def test_the_text_is_that_of_one_that_is_alone_whatever_ranks_of_drafter_groups_draft_for_it(
    pairs: ShardedTargets,
    fours: ShardedTargets,
    drafter_groups: list[DrafterGroup],
    prompts: list[list[int]],
    alone: dict[tuple[str, int], list[int]],
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both sessions of one half of the kinds are on one rank, and the other rank drafts for nobody."""
    restless(monkeypatch)
    seen = [len(group.turns) for group in drafter_groups]
    asked = [
        (Case(group.kind, way, (row + column + size) % len(TEXTS)), {group.kind: group.endpoints[row * column % 2]})
        for row, group in enumerate(drafter_groups)
        for column, way in enumerate(("greedy", "seeded"))
    ]
    async with verifiers_of({2: pairs, 4: fours}.get(size)) as verifiers:
        calls = [
            decode(verifier, case.request(prompts, drafters))
            for (case, drafters), verifier in zip(asked, itertools.cycle((verifiers[0], verifiers[-1])))
        ]
        async with asyncio.timeout(100):
            written = await asyncio.gather(*calls)
    wrong = [
        case for (case, _), (tokens, _) in zip(asked, written, strict=True) if tokens != alone[case.way, case.text]
    ]
    assert wrong == []
    assert sum(end.speculation.drafted for _, end in written) > len(asked), "there were drafts to be wrong about"
    await eventually(lambda: all(group.parked for group in drafter_groups))
    for group in drafter_groups:
        first, other = group.meshes
        assert first.told == other.told and first.collectives == other.collectives
    turns = [agreed for group, before in zip(drafter_groups, seen, strict=True) for agreed in group.turns[before:]]
    assert any(agreed.rows[0] and not agreed.rows[1] for agreed in turns), "a rank stood idle"


@asynccontextmanager
async def verifiers_of(targets: ShardedTargets | None) -> AsyncIterator[list[Verifier]]:
    """The ranks of a group, or one that is alone."""
    if targets is None:
        async with verifier_over(POCKET, kv_tokens=4096, wait_budget_us=PATIENT_US) as verifier:
            yield [verifier]
    else:
        async with sharded_ranks(targets, max_sessions=32, wait_budget_us=PATIENT_US) as ranks:
            yield ranks.verifiers


@pytest.mark.parametrize(("size", "busy", "half"), [(2, 1, 0), (2, 2, 1), (4, 2, 1), (4, 3, 0)])
async def test_the_text_of_a_group_is_that_of_one_that_is_alone_with_any_drafter_and_any_plans(
    pairs: ShardedTargets,
    fours: ShardedTargets,
    drafters: dict[DrafterKind, Endpoint],
    prompts: list[list[int]],
    alone: dict[tuple[str, int], list[int]],
    size: int,
    busy: int,
    half: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sessions are dealt out to some of the ranks, and the others are idle. Groups of each size meet all pairs of drafter and way."""
    restless(monkeypatch)
    chance = random.Random(size + half)
    cases = [case for place, case in enumerate(CASES) if (place + place // len(WAYS)) % 2 == half]
    ranks_busy = chance.sample(range(size), busy)
    async with sharded_ranks(pairs if size == 2 else fours, max_sessions=32) as ranks:
        steps = [recorded(verifier) for verifier in ranks.verifiers]
        chance.shuffle(cases)
        dealt = zip(cases, itertools.cycle(ranks_busy))
        asked = [decode(ranks.verifiers[rank], case.request(prompts, drafters)) for case, rank in dealt]
        async with asyncio.timeout(100):
            written = await asyncio.gather(*asked)
        await ranks.parked()
        wrong = [case for case, (tokens, _) in zip(cases, written, strict=True) if tokens != alone[case.way, case.text]]
        assert wrong == []
        assert sum(end.speculation.drafted for _, end in written) > len(cases), "there were drafts to be wrong about"
        for rank, own in enumerate(steps):
            assert rank in ranks_busy or (own and all(result.idle for result in own))
        same_for_all(ranks)
        assert len({agreed.plan for agreed in turns_of(ranks)}) > 5
        assert len({verifier.plan for verifier in ranks.verifiers}) == 1


async def test_the_text_of_a_group_with_captured_forwards_is_that_of_one_that_is_alone(
    captured: ShardedTargets,
    drafters: dict[DrafterKind, Endpoint],
    prompts: list[list[int]],
    alone: dict[tuple[str, int], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One session on one rank, three on the other, which is idle in the end. Prompts, and many trees at once, are run eagerly."""
    restless(monkeypatch)
    cases = [Case(kind, way, row) for row, (kind, way) in enumerate(zip(KINDS, WAYS, strict=False))]
    async with sharded_ranks(captured, max_sessions=32) as ranks:
        calls = [decode(ranks.verifiers[case.text % 4 == 0], case.request(prompts, drafters)) for case in cases]
        async with asyncio.timeout(100):
            written = await asyncio.gather(*calls)
        await ranks.parked()
        assert [tokens for tokens, _ in written] == [alone[case.way, case.text] for case in cases]
        same_for_all(ranks)
        turns = [agreed for agreed in turns_of(ranks) if agreed.runs]
    replayed = [agreed for agreed in turns if not agreed.demand.eager]
    assert {each.replayed for each in captured.graphs} == {len(replayed)}, "the same turns on both"
    assert len(replayed) > NEW and len(turns) > len(replayed)
    assert any(0 in agreed.rows for agreed in replayed), "an idle rank replayed too"


@pytest.fixture
def tiers(tmp_path: Path) -> Path:
    """Every step decides anew, and never the same for many sessions as for few."""
    nervous = {"ema_alpha": 1, "warmup_batches": 0, "update_interval": 1}
    slots = {"1": {"candidate_steps": [1]}, "8": {"candidate_steps": [2, 4]}}
    file = tmp_path / "tiers.json"
    file.write_text(json.dumps(nervous | slots))
    return file


@pytest.mark.parametrize("adaptive", ["ema", "goodput"])
async def test_a_flood_on_one_rank_of_four_with_any_drafters_is_served_under_its_plan_while_three_are_idle(
    fours: ShardedTargets,
    drafters: dict[DrafterKind, Endpoint],
    prompts: list[list[int]],
    alone: dict[tuple[str, int], list[int]],
    tiers: Path,
    adaptive: str,
) -> None:
    chosen = {"adaptive_config": tiers} if adaptive == "ema" else {"max_draft_tokens": 8}
    async with sharded_ranks(fours, adaptive=adaptive, max_sessions=32, **chosen) as ranks:
        steps = [recorded(verifier) for verifier in ranks.verifiers]
        requests = [replace(case.request(prompts, drafters), stopping=stop_after(case)) for case in CASES]
        with ranks.asleep():
            asked = [asyncio.ensure_future(decode(ranks.verifiers[2], request)) for request in requests]
            await eventually(lambda: ranks.verifiers[2].load().waiting == len(CASES))
        async with asyncio.timeout(100):
            written = [tokens for tokens, _ in await asyncio.gather(*asked)]
        await ranks.parked()
    assert written == [alone[each.way, each.text][: stop_after(each).max_tokens] for each in CASES]
    assert all(result.idle for own in (steps[0], steps[1], steps[3]) for result in own)
    turns = turns_of(ranks)
    busy = [agreed for agreed in turns if agreed.unfinished]
    assert len(busy) >= NEW and all(agreed.plan == agreed.proposals[2].plan for agreed in busy), "idle ranks abstain"
    same_for_all(ranks)
    if adaptive == "ema":  # with goodput people are told what each rank chose within the plan
        assert {verifier.plan for verifier in ranks.verifiers} == {busy[-1].plan}
    switches = {verifier.engine.statistics().plan.switches for verifier in ranks.verifiers}
    assert len(switches) == 1 and (switches != {0}) == (adaptive == "ema"), "all of them took it, as often"


def stop_after(case: Case) -> Stopping:
    """Those with a drafter are over soon, so that there are few in the end."""
    return Stopping(NEW if case.kind is None else NEW // 3, ignore_eos=True)


def same_for_all(ranks: Ranks) -> None:
    """All ranks ran the same collectives in the same order."""
    first, *others = ranks.meshes
    assert all(mesh.collectives == first.collectives and mesh.told == first.told for mesh in others)


def turns_of(ranks: Ranks) -> list[Agreed]:
    """All that the ranks had together."""
    _, *turns = ranks.meshes[0].told
    return [Agreed(0, [Proposal.of(numbers) for numbers in told]) for told in turns]
