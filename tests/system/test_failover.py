"""A session outlives its verifier at every position: the pocket target decodes, and the coordinator's own parts place and place again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from specsplit.client import make_request
from specsplit.client.result import Gatherer, Result
from specsplit.clock import SystemClock
from specsplit.errors import InvalidRequest, Unavailable
from specsplit.generation.preparation import RandomSources
from specsplit.membership import Register
from specsplit.observe import Tracing
from specsplit.requests import Delta, Done, GenerateRequest
from specsplit.sessions import DecodeRequest, Tokens
from specsplit.settings import VerifierSettings
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import Adaptive, TraceScope, Usage
from specsplit_coordinator.cluster.drafter_placement import DrafterPlacement
from specsplit_coordinator.cluster.drafter_scorer import DrafterScorer
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.members.verifier_session import VerifierSession
from specsplit_coordinator.requests.admission import Admission
from specsplit_coordinator.requests.caps import Caps
from specsplit_coordinator.requests.generation import Generator
from specsplit_coordinator.requests.quotas import Quota, Quotas
from specsplit_coordinator.requests.request_log import RequestLog
from specsplit_coordinator.requests.run import ClusterAccess, Decoder
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.target.runner import TargetRunner
from tests.support.grammars import SCHEMA
from tests.support.pulled import answered
from tests.support.rounding import assert_same_log_probabilities
from tests.support.slow import slowly
from tests.verifier.conftest import verifier_of

POCKET = Path("models/pocket/target")
SETTINGS = VerifierSettings(model=POCKET, adaptive=Adaptive.STATIC, prefix_cache=False)
VOCABULARY_SIZE = 2048
PROMPT, NEW = "def mean(values):\n", 12
HOW: dict[str, dict[str, object]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "seed": 7},
    "penalties": {"temperature": 0.8, "seed": 3, "repetition_penalty": 1.3, "frequency_penalty": 0.8},
    "logprobs": {"temperature": 0.7, "seed": 5, "logprobs": 3},
    "held to a schema": {"temperature": 0.9, "seed": 4, "json_schema": SCHEMA},
    "held to a choice": {"choice": ["None", "values[0]"]},
    "two choices": {"temperature": 1.0, "seed": 9, "n": 2},
}


@dataclass
class Mortal:
    """Decodes on a real verifier, and lets every choice down once, behind so many tokens."""

    verifier: Verifier
    registry: Registry
    dies_after: int | None = None
    comes_back: bool = False
    """True: the verifier that dies joins again; it is the only one."""
    asked: list[DecodeRequest] = field(default_factory=list[DecodeRequest])

    async def decode(self, verifier: MemberState, session: VerifierSession) -> None:
        request = session.request
        again = any(other.sampling == request.sampling for other in self.asked)
        self.asked.append(request)
        left = None if again else self.dies_after
        async with aclosing(self.verifier.decode(request)) as events:
            async for event in events:
                if left is not None and (not isinstance(event, Tokens) or len(event.tokens) > left):
                    if isinstance(event, Tokens) and left:
                        session.take([replace(event, tokens=event.tokens[:left], logprobs=event.logprobs[:left])])
                    self._die(verifier)
                if left is not None and isinstance(event, Tokens):
                    left -= len(event.tokens)
                if session.take([event]):
                    return
                if left == 0:
                    self._die(verifier)

    def _die(self, member: MemberState) -> None:
        if self.comes_back:
            self.registry.remove(member, "it was killed")
            asyncio.get_running_loop().call_later(0.02, self.registry.register, member.who)
        raise Unavailable("killed")


@dataclass
class World:
    generator: Generator
    log: RequestLog

    async def ask(self, request: GenerateRequest) -> Result:
        gatherer = Gatherer(request.n)
        async with aclosing(answered(self.generator.generate, request, lambda: None, "")) as sets:
            async for events in sets:
                for event in events:
                    gatherer.add(event)
        return gatherer.result()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(POCKET)


@pytest.fixture(scope="module")
def loaded() -> TargetRunner:
    return load_target(SETTINGS, SystemClock())


@pytest.fixture
async def verifier(loaded: TargetRunner) -> AsyncIterator[Verifier]:
    async with verifier_of(SETTINGS, loaded) as verifier:
        yield verifier


def world(verifier: Verifier, tokenizer: Tokenizer, dies_after: int | None = None, *, alone: bool = False) -> World:
    registry = Registry(tokenizer.vocabulary, SystemClock(), 9.0)
    for name in ["a"] if alone else ["a", "b", "c"]:
        registry.register(Register(name, "a:1", verifier.info, 4))
    return around(Mortal(verifier, registry, dies_after, alone), registry, tokenizer)


def around(decoder: Decoder, registry: Registry, tokenizer: Tokenizer) -> World:
    """The coordinator's parts around what decodes."""
    clock = SystemClock()
    log = RequestLog(clock, Tracing("coordinator", TraceScope()))
    random = RandomSources(lambda: 1, lambda: "drawn")
    placement = DrafterPlacement(DrafterScorer(registry, clock))
    cluster = ClusterAccess(registry, Admission(registry, 9, 1.0), decoder, placement, tokenizer.vocabulary)
    generator = Generator(tokenizer, cluster, random, log, Caps(), Quotas(Quota(), log.clock, 1.0))
    return World(generator, log)


def same(result: Result, whole: Result) -> None:
    for one, other in zip(result.choices, whole.choices, strict=True):
        assert (one.text, one.tokens) == (other.text, other.tokens)
        assert (one.reason, one.done.matched_stop, one.seed) == (other.reason, other.done.matched_stop, other.seed)
        assert replace(one.usage, cached_prompt_tokens=0) == replace(other.usage, cached_prompt_tokens=0)
        assert [each.token for each in one.logprobs] == [each.token for each in other.logprobs]
        for mine, its in zip(one.logprobs, other.logprobs, strict=True):
            assert [top.token for top in mine.top] == [top.token for top in its.top]
            found, expected = ([each.logprob, *(top.logprob for top in each.top)] for each in (mine, its))
            assert_same_log_probabilities(found, expected, VOCABULARY_SIZE)


async def stops_in(verifier: Verifier, tokenizer: Tokenizer) -> dict[str, object]:
    """Options with a stop string that begins inside of one token of the greedy text and ends inside of another."""
    text = (await world(verifier, tokenizer).ask(make_request(PROMPT, max_tokens=NEW))).text
    middle = len(text) // 2
    return {"stop": (text[middle : middle + 4], text[middle + 1 : middle + 3] + "\x00")}


async def options(how: str, verifier: Verifier, tokenizer: Tokenizer) -> dict[str, object]:
    return await stops_in(verifier, tokenizer) if how == "stop string" else HOW[how]


@pytest.mark.parametrize("how", ["seeded", "stop string", *slowly("greedy", "penalties", "logprobs", "two choices")])
async def test_a_kill_at_any_position_changes_nothing_that_a_caller_sees(
    verifier: Verifier, tokenizer: Tokenizer, how: str
) -> None:
    request = make_request(PROMPT, max_tokens=NEW, **await options(how, verifier, tokenizer))  # pyright: ignore[reportArgumentType]
    whole = await world(verifier, tokenizer).ask(request)
    for position in range(len(whole.tokens) + 1):
        disturbed = world(verifier, tokenizer, position)
        same(await disturbed.ask(request), whole)
        steps = sum(choice.speculation.steps for choice in whole.choices)
        (logged,) = disturbed.log.requests
        assert logged.failovers == (request.n if position < len(whole.tokens) else 0), "behind the last nothing goes on"
        assert logged.speculation.steps >= steps


async def test_the_only_verifier_comes_back_and_the_session_goes_on(verifier: Verifier, tokenizer: Tokenizer) -> None:
    request = make_request(PROMPT, max_tokens=NEW)
    whole = await world(verifier, tokenizer).ask(request)
    for position in range(NEW + 1):
        same(await world(verifier, tokenizer, position, alone=True).ask(request), whole)


@pytest.mark.parametrize("how", [how for how in [*HOW, "stop string"] if how != "two choices"])
async def test_resumed_from_any_position_the_answer_is_the_rest(
    verifier: Verifier, tokenizer: Tokenizer, how: str
) -> None:
    request = make_request(PROMPT, max_tokens=NEW, **await options(how, verifier, tokenizer))  # pyright: ignore[reportArgumentType]
    generating = answered(world(verifier, tokenizer).generator.generate, request, lambda: None, "")
    events = [event async for together in generating for event in together]
    deltas = [event for event in events if isinstance(event, Delta)]
    done = events[-1]
    assert isinstance(done, Done)
    tokens, seen = tuple(token for delta in deltas for token in delta.tokens), 0
    text = "".join(delta.text for delta in deltas)
    heard = ""
    for delta in deltas:
        heard, seen = heard + delta.text, seen + len(delta.tokens)
        rest = await world(verifier, tokenizer).ask(replace(request, resume_from=tokens[:seen]))
        if not delta.tokens:  # the text that was held back to the end
            continue
        assert (heard + rest.text, rest.tokens) == (text, tokens[seen:])
        assert (rest.reason, rest.done.matched_stop) == (done.reason, done.matched_stop)
        assert rest.usage == Usage(done.usage.prompt_tokens, done.usage.completion_tokens)


async def test_what_cannot_be_resumed_is_refused(verifier: Verifier, tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="resume_from: needs the seed"):
        make_request(PROMPT, temperature=1.0, resume_from=[1])
    with pytest.raises(InvalidRequest, match="resume_from: goes with one choice"):
        make_request(PROMPT, n=2, resume_from=[1])
    with pytest.raises(InvalidRequest, match="resume_from: has 3 tokens, but the answer ends after 2"):
        await world(verifier, tokenizer).ask(make_request(PROMPT, max_tokens=2, resume_from=[1, 2, 3]))
    with pytest.raises(InvalidRequest, match="resume_from"):
        await world(verifier, tokenizer).ask(make_request(PROMPT, resume_from=[10**6]))
