"""Greedy, seeded and sampled output is the target's own: the pocket models against transformers, over real processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from benchmarks.rank import Generated, generate, rank
from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.client import Client, make_request
from specsplit.features import FeatureNeed
from specsplit.membership import Roster
from specsplit.rpc import dial
from specsplit.sessions import DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit.v1 import drafter_pb2_grpc
from specsplit.values import Endpoint, PlanChanges, Stopping
from specsplit.wire import drafter as wire
from tests.support.restless import RestlessController
from tests.support.rounding import assert_same_log_probabilities
from tests.support.sampling import processors
from tests.support.scrape import Places
from tests.support.slow import slowly
from tests.system.conftest import SERIAL

POCKET = Path("models/pocket")
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 50, 24, 128
FEWER_TOKENS = 64
"""Of a text that is seeded, written with seven others, or written while plans switch."""
LARGEST_TOKENS = 48
DRAFTERS = ["eagle3", "multi_layer_eagle", "eagle", "standalone", "ngram"]
KINDS = ["none", *DRAFTERS]
DRAFTER = pytest.mark.parametrize("drafter", ["eagle3", "ngram", *slowly("standalone", "multi_layer_eagle", "eagle")])
"""Drafters that differ from `eagle3` in nothing but what they compute are slow."""
DRAFTER_OR_NONE = pytest.mark.parametrize("drafter", ["none", *DRAFTER.args[1]])
AHEAD = PlanChanges(draft_ahead=True)
"""As usual. How much is drafted in time is a matter of the machine, and what is written is not."""
LARGEST = PlanChanges(num_steps=64, topk=64, num_draft_tokens=256, draft_ahead=True)
"""The most that a plan may ask for: drafters grow as much as they find worth while, and as fast as they can."""
SEEDED = {"temperature": 0.9, "top_k": 200, "top_p": 0.95, "min_p": 0.01, "seed": 2024}
PENALISED = {
    "logit_bias": {10: -0.5, 40: -100.0},
    "repetition_penalty": 1.05,
    "frequency_penalty": 0.05,
    "presence_penalty": 0.2,
}


@pytest.fixture(scope="module")
def places() -> Places:
    """Where the processes of the cluster serve their metrics."""
    return Places()


@pytest.fixture(scope="module")
def cluster(places: Places) -> Iterator[LocalCluster]:
    """Two verifiers that take one session at a time."""
    target, settings = POCKET / "target", {"max_sessions": 1, "metrics_listen": "127.0.0.1:0"}
    with LocalCluster(
        target, drafts_beside(target), verifiers=2, drafters=DRAFTERS, verifier=settings, listener=places.hear
    ) as started:
        yield started


def drops(cluster: LocalCluster, places: Places) -> float:
    """Drafters that the verifiers which are there have dropped since they began."""
    names = [child.name for child in cluster.verifiers if child.alive]
    return sum(places.scraped(name)("specsplit_drafters_dropped_total") for name in names)


@pytest.fixture(scope="module")
def wide(cluster: LocalCluster, places: Places) -> LocalCluster:
    """The same cluster, a verifier that takes eight sessions at a time in the place of the two."""
    assert drops(cluster, places) == 0
    narrow = list(cluster.verifiers)
    cluster.spawn_verifier(max_sessions=8)
    cluster.wait_joined()
    for verifier in narrow:
        verifier.terminate()
        assert verifier.wait(30) == 0
    return cluster


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """The beginnings of functions all over the standard library, cut to one length so that transformers needs no padding."""
    tokenizer = AutoTokenizer.from_pretrained(POCKET / "target")
    source = Path(torch.__file__).parent / "nn" / "functional.py"  # never trained on
    pieces = source.read_text().split("\ndef ")[1:]
    encoded = (tokenizer.encode("\ndef " + piece) for piece in pieces)
    chosen = [tokens[:PROMPT_TOKENS] for tokens in encoded if len(tokens) >= PROMPT_TOKENS]
    assert len(chosen) >= PROMPTS
    return chosen[:PROMPTS]


@pytest.fixture(scope="module")
def plain() -> PreTrainedModel:
    """The target in transformers' own hands."""
    return AutoModelForCausalLM.from_pretrained(POCKET / "target", dtype=torch.float32)


def written_by(
    plain: PreTrainedModel, prompts: list[list[int]], max_tokens: int, **how: object
) -> list[tuple[int, ...]]:
    """What transformers' own greedy search writes."""
    config = GenerationConfig(do_sample=False, max_new_tokens=max_tokens, eos_token_id=None, pad_token_id=0)
    ids = torch.tensor(prompts)
    with torch.inference_mode():
        output = plain.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **how)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return [tuple(row[PROMPT_TOKENS:]) for row in output.tolist()]


@pytest.fixture(scope="module")
def references(prompts: list[list[int]], plain: PreTrainedModel) -> list[tuple[int, ...]]:
    """What transformers writes."""
    return written_by(plain, prompts, NEW_TOKENS)


@pytest.fixture(scope="module")
def penalised(prompts: list[list[int]], plain: PreTrainedModel) -> list[tuple[int, ...]]:
    """What transformers writes with its own processors."""
    asked = make_request("", **PENALISED).sampling
    return written_by(plain, prompts[:8], FEWER_TOKENS, logits_processor=processors(asked, PROMPT_TOKENS))


def beginnings(texts: Sequence[tuple[int, ...]], tokens: int) -> list[tuple[int, ...]]:
    """What is written of each if it may have no more than so many tokens."""
    return [text[:tokens] for text in texts]


def write(
    client: Client, prompt: list[int], drafter: str, plan: PlanChanges, max_tokens: int, **options: object
) -> tuple[tuple[int, ...], int, str]:
    """(tokens, accepted drafts, name of the verifier)."""
    result = client.generate(
        prompt,
        max_tokens=max_tokens,
        ignore_eos=True,
        drafter=drafter,
        plan=plan,
        timeout_s=120,
        **options,  # pyright: ignore[reportArgumentType]
    )
    return result.tokens, result.speculation.accepted, result.done.verifier


def write_all(
    cluster: LocalCluster,
    prompts: list[list[int]],
    drafter: str,
    in_flight: int,
    plan: PlanChanges,
    max_tokens: int = NEW_TOKENS,
    **options: object,
) -> tuple[list[tuple[int, ...]], int]:
    """(tokens per prompt, accepted drafts in all). Every verifier takes part, so that one drafter serves two where there are two."""
    with cluster.client() as client, ThreadPoolExecutor(in_flight) as pool:
        written = list(pool.map(lambda prompt: write(client, prompt, drafter, plan, max_tokens, **options), prompts))
    assert {name for _, _, name in written} == {child.name for child in cluster.verifiers if child.alive}
    return [tokens for tokens, _, _ in written], sum(accepted for _, accepted, _ in written)


@pytest.fixture(scope="module")
def seeded(cluster: LocalCluster, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """What the target alone, one session at a time, writes with a seed."""
    return write_all(cluster, prompts[:8], "none", 2, AHEAD, FEWER_TOKENS, **SEEDED)[0]


# In this order: the two narrow verifiers are gone once the wide one is there.


@pytest.mark.timeout(300)
@DRAFTER_OR_NONE
def test_greedy_text_is_what_transformers_writes(
    cluster: LocalCluster, prompts: list[list[int]], references: list[tuple[int, ...]], drafter: str
) -> None:
    """One session at a time. Every prompt is written once, with one drafter or another."""
    own = slice(KINDS.index(drafter), None, len(KINDS))
    written, accepted = write_all(cluster, prompts[own], drafter, in_flight=2, plan=SERIAL)
    assert written == references[own]
    assert accepted == 0 if drafter == "none" else accepted > len(written)


@pytest.mark.timeout(300)
@DRAFTER
def test_seeded_text_is_the_same_with_any_drafter(
    cluster: LocalCluster, prompts: list[list[int]], seeded: list[tuple[int, ...]], drafter: str
) -> None:
    written, _ = write_all(cluster, prompts[:4], drafter, 2, AHEAD, FEWER_TOKENS, **SEEDED)
    assert written == seeded[:4]


@pytest.mark.timeout(300)
@DRAFTER_OR_NONE
def test_greedy_text_is_the_same_in_a_batch_of_eight(
    wide: LocalCluster, prompts: list[list[int]], references: list[tuple[int, ...]], drafter: str
) -> None:
    """Every prompt is written by one or two of the kinds, and each of them fills the batch and fills it again."""
    own = slice(KINDS.index(drafter) % 4, None, 4)
    written, accepted = write_all(wide, prompts[own], drafter, in_flight=8, plan=AHEAD, max_tokens=FEWER_TOKENS)
    assert written == beginnings(references[own], FEWER_TOKENS)
    assert drafter != "none" or accepted == 0


@pytest.mark.timeout(300)
@DRAFTER_OR_NONE
def test_seeded_text_is_the_same_in_a_batch_of_eight(
    wide: LocalCluster, prompts: list[list[int]], seeded: list[tuple[int, ...]], drafter: str
) -> None:
    written, accepted = write_all(
        wide, prompts[:8], drafter, in_flight=8, plan=SERIAL, max_tokens=FEWER_TOKENS, **SEEDED
    )
    assert written == seeded
    assert drafter in ("none", "ngram") or accepted > 0


@pytest.mark.timeout(300)
@DRAFTER_OR_NONE
@pytest.mark.parametrize("options", [{}, SEEDED], ids=["greedy", "seeded"])
def test_log_probabilities_are_those_of_transformers_with_any_drafter(
    wide: LocalCluster, prompts: list[list[int]], plain: PreTrainedModel, drafter: str, options: dict[str, float]
) -> None:
    with wide.client() as client:
        result = client.generate(
            prompts[0],
            max_tokens=48,
            ignore_eos=True,
            drafter=drafter,
            plan=SERIAL,
            logprobs=3,
            prompt_logprobs=3,
            timeout_s=120,
            **options,  # pyright: ignore[reportArgumentType]
        )
    assert [each.token for each in result.logprobs] == list(result.tokens)
    with torch.inference_mode():
        logits = plain(torch.tensor([[*prompts[0], *result.tokens]])).logits[0, :-1]
    assert [each.token for each in result.prompt_logprobs] == list(prompts[0][1:])
    for told, expected in zip(
        (*result.prompt_logprobs, *result.logprobs), torch.log_softmax(logits.float(), dim=-1), strict=True
    ):
        found = [told.logprob, *(top.logprob for top in told.top)]
        assert_same_log_probabilities(
            found, [expected[told.token].item(), *expected.topk(3).values.tolist()], len(expected)
        )
        assert_same_log_probabilities(found[1:], [expected[top.token].item() for top in told.top], len(expected))


@pytest.mark.timeout(300)
@DRAFTER_OR_NONE
def test_greedy_text_with_penalties_is_what_transformers_writes_with_its_own(
    wide: LocalCluster, prompts: list[list[int]], penalised: list[tuple[int, ...]], drafter: str
) -> None:
    written, accepted = write_all(
        wide, prompts[:8], drafter, in_flight=8, plan=SERIAL, max_tokens=FEWER_TOKENS, **PENALISED
    )
    assert written == penalised
    assert drafter in ("none", "ngram") or accepted > 0


@pytest.fixture(scope="module")
def penalised_seeded(wide: LocalCluster, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """What the target alone, one session at a time, writes with a seed and penalties."""
    return write_all(wide, prompts[:4], "none", 1, AHEAD, FEWER_TOKENS, **SEEDED, **PENALISED)[0]


@pytest.mark.timeout(300)
@DRAFTER
def test_seeded_text_with_penalties_is_the_same_with_any_drafter(
    wide: LocalCluster, prompts: list[list[int]], penalised_seeded: list[tuple[int, ...]], drafter: str
) -> None:
    written, _ = write_all(wide, prompts[:4], drafter, 4, AHEAD, FEWER_TOKENS, **SEEDED, **PENALISED)
    assert written == penalised_seeded


@pytest.mark.timeout(300)
@DRAFTER
def test_no_drafter_is_dropped_for_what_it_says_under_the_largest_plan_nor_was_one_before(
    wide: LocalCluster, places: Places, prompts: list[list[int]], references: list[tuple[int, ...]], drafter: str
) -> None:
    written, _ = write_all(wide, prompts[:2], drafter, in_flight=2, plan=LARGEST, max_tokens=LARGEST_TOKENS)
    assert written == beginnings(references[:2], LARGEST_TOKENS)
    assert drops(wide, places) == 0


@pytest.fixture(scope="module")
def drafting(cluster: LocalCluster) -> dict[str, Endpoint]:
    """The drafters of the cluster, by kind, for a verifier that is no member."""

    async def asked(address: str) -> FeatureNeed:
        async with dial(address) as channel:
            response = await drafter_pb2_grpc.DrafterServiceStub(channel).GetDrafterInfo(wire.drafter_info_request())
        return wire.drafter_info_from_wire(response).features

    return {
        kind: Endpoint(child.name, child.address, asyncio.run(asked(child.address)))
        for kind, child in zip(DRAFTERS, cluster.drafters, strict=True)
    }


@pytest.fixture
def nervous_tiers(tmp_path: Path) -> Path:
    """Every step decides anew, by itself alone.

    Without the tier of 0 steps, which the restless controller has: whether anything is accepted while drafters come and go is chance.
    """
    tiers = {"ema_alpha": 1, "warmup_batches": 0, "update_interval": 1, "1": {"candidate_steps": [1, 2, 4, 8]}}
    file = tmp_path / "tiers.json"
    file.write_text(json.dumps(tiers))
    return file


def settings_of(controller: str, nervous_tiers: Path) -> VerifierSettings:
    """A verifier of eight sessions, whose steps wait for their drafts as far as the controller leaves that as it is."""
    settings = {"max_sessions": 8, "draft_ahead": False, "wait_budget_us": 2_000_000}
    if controller == "ema":
        settings |= {"adaptive": "ema", "adaptive_config": nervous_tiers, "num_steps": 4}
    if controller == "goodput":
        settings |= {"adaptive": "goodput", "max_draft_tokens": 8}
    return VerifierSettings.model_validate({"model": POCKET / "target", **settings})


Case = tuple[str, dict[str, Any], list[int], tuple[int, ...]]
"""Drafter, how tokens are picked, prompt, and the text that it has to be."""


@pytest.fixture(scope="module")
def cases(
    prompts: list[list[int]],
    references: list[tuple[int, ...]],
    seeded: list[tuple[int, ...]],
    penalised: list[tuple[int, ...]],
    penalised_seeded: list[tuple[int, ...]],
) -> list[Case]:
    """Every drafter with every way to pick tokens, and one session without a drafter."""
    ways = [({}, references), (SEEDED, seeded), (PENALISED, penalised), (SEEDED | PENALISED, penalised_seeded)]
    return [("none", {}, prompts[-1], references[-1])] + [
        (kind, way, prompts[number % len(texts)], texts[number % len(texts)])
        for way, texts in ways
        for number, kind in enumerate(DRAFTERS)
    ]


CONTROLLERS = [
    ("restless", (0, 1)),
    pytest.param("ema", (0, 2), marks=pytest.mark.slow),
    pytest.param("goodput", (1, 2), marks=pytest.mark.slow),
]
"""Of drafters and ways to pick tokens the restless one has all pairs, the others half of them each, as on a chessboard."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("controller", "of"), CONTROLLERS)
def test_text_is_the_same_whatever_a_controller_does(
    drafting: dict[str, Endpoint],
    cases: list[Case],
    nervous_tiers: Path,
    monkeypatch: pytest.MonkeyPatch,
    controller: str,
    of: tuple[int, int],
) -> None:
    """The cases meet in the batches of one verifier, which is in this process; drafters are processes of their own."""
    if controller == "restless":
        monkeypatch.setattr("specsplit_verifier.engine.engine.controller_for", lambda *_: RestlessController(seed=9))
    chosen, stopping = cases[of[0] :: of[1]], Stopping(FEWER_TOKENS, ignore_eos=True)
    requests = [
        DecodeRequest(kind, prompt, make_request("", **way).sampling, stopping, drafter=drafting.get(kind))
        for kind, way, prompt, _ in chosen
    ]
    generated, switches = asyncio.run(decoded(settings_of(controller, nervous_tiers), requests))
    wrong = [
        case[:2] for case, got in zip(chosen, generated, strict=True) if tuple(got.tokens) != case[3][:FEWER_TOKENS]
    ]
    assert wrong == []
    assert sum(got.speculation.drafted for got in generated) > len(generated), "there were drafts to be wrong about"
    if controller != "goodput":
        assert switches > 20
        assert sum(got.speculation.accepted for got in generated) > len(generated)


async def decoded(settings: VerifierSettings, requests: Sequence[DecodeRequest]) -> tuple[list[Generated], int]:
    """What a verifier in this process makes of requests, as many at once as it takes, and how often its plan switched."""
    free = asyncio.Semaphore(settings.max_sessions)
    async with rank(settings) as verifier:

        async def one(request: DecodeRequest) -> Generated:
            async with free:
                return await generate(verifier, request)

        verifier.engine.post(Roster(tuple(request.drafter for request in requests if request.drafter is not None)))
        generated = await asyncio.gather(*map(one, requests))
        assert sum(stream.drops for stream in verifier.streams.statistics.values()) == 0
        return generated, verifier.engine.statistics().plan.switches
