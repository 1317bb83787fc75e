"""Verifier and drafters with heads joined by a wire that delays, crosses the two directions and drops peers, on a seed.

As test_loopback, with features: prompts are prefilled in chunks, windows and retention are small, drafters are of different kinds (so that
one that takes over needs other features, which are recomputed), and every child that a head proposes is compared with what transformers
computes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.draft_events import Refuse
from specsplit.errors import SpecsplitError
from specsplit.features import FeatureFormat, FeatureNeed, Features
from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.model.tensors.feature_codec import encode
from specsplit.sessions import DecodeRequest
from specsplit.speculation import Draft
from specsplit.values import Endpoint, Plan, Stopping
from specsplit_drafter.engine.session_table import SessionTable, TableLimits
from specsplit_verifier.drafters.pool import DrafterPool
from specsplit_verifier.records.events import FromDrafter
from specsplit_verifier.records.feed import FeatureSource, FeedLimits, Recipe
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.session import Session, StopRule
from tests.drafter.head_toys import HEADS, VOCABULARY, features_of, head_of
from tests.drafter.test_heads import Checked
from tests.support.loopback import ADDRESSES, MOVES, TICKS_S, Loopback
from tests.support.ticking import TickingClock

MAX_NODES = 30
LIMIT = 40
HIDDEN = 32


def recipe_of(need: FeatureNeed) -> Recipe:
    return Recipe(need.layers, "", need.layout(HIDDEN, FeatureFormat.FLOAT32))


class World(Loopback):
    """A verifier whose sessions read their prompts, and drafters with heads."""

    def __init__(self, heads: Sequence[str], prompts: Sequence[int], limits: FeedLimits, chance: random.Random) -> None:
        """prompts: how long each is."""
        budget, pages = chance.choice([1, 3, 512]), PagePool(256, 4)
        clock = TickingClock(lambda: chance.choice(TICKS_S))
        tables = {
            address: SessionTable(Checked(name, budget, 1024), TableLimits(16, chance.choice([4, 32])), clock)
            for address, name in zip(ADDRESSES, heads, strict=True)
        }
        super().__init__(DrafterPool(VOCABULARY, MAX_NODES, FeatureSource(recipe_of, limits)), tables, MAX_NODES)
        self.chance = chance
        self.limits = limits
        endpoints = [Endpoint(a, a, head_of(name).shape.need) for a, name in zip(ADDRESSES, heads, strict=True)]
        plan = Plan(num_steps=chance.choice([1, 3]), topk=2, num_draft_tokens=5, draft_ahead=chance.random() < 0.7)
        for number, length in enumerate(prompts, start=1):
            prompt = [chance.randrange(VOCABULARY.size) for _ in range(length)]
            request = DecodeRequest(str(number), tuple(prompt), stopping=Stopping(LIMIT))
            session = Session(number, request, plan, StopRule(LIMIT), PageTable(pages), prompt)
            self.attach(session, endpoints[number % 2])
        self.drafters.roster(endpoints, (), self.now)
        self.send_outgoing()

    def step(self, session: Session, chunk: int) -> None:
        """One step of a session, prefill of `chunk` tokens or verification; as many are computed again if its drafter lacks them."""
        again = session.drafter.recompute[:chunk]
        first = session.kv_length
        if session.prefilling:
            count = min(chunk, len(session.tokens) - 1 - first)
            session.kv_length += count
        else:
            count = self.verify(session)
        if session.id in self.sessions:
            self.computed(session, again.start, len(again))
            self.computed(session, first, count)

    def verify(self, session: Session) -> int:
        """How many tokens' features were computed."""
        self.apply_grows()
        taken = session.take(session.tree_limits)
        for _ in range(self.chance.randrange(3)):
            self.deliver_to_verifier(self.chance.choice(ADDRESSES))  # while the step runs
        self.apply_grows()
        return self.commit(session, taken, self.picks(taken))

    def picks(self, taken: Draft) -> list[int]:
        """What the target picks behind each token: one of its children, more often than not."""
        children: dict[int, list[int]] = {}
        for token, parent in zip(taken.tokens, taken.parents, strict=True):
            children.setdefault(parent, []).append(token)
        return [
            self.chance.choice(children[node])
            if node in children and self.chance.random() < 0.7
            else self.chance.randrange(VOCABULARY.size)
            for node in range(len(taken.tokens))
        ]

    def computed(self, session: Session, first: int, count: int) -> None:
        self.apply_grows()
        recipe = session.drafter.recipe
        if recipe is not None and count:
            rows = features_of(session.tokens[: first + count], recipe.layers)[first:]
            self.drafters.computed(session, Features(first, count, *encode(rows, recipe.layout)), self.now)
            self.send_outgoing()

    def heard(self, events: FromDrafter) -> None:
        assert not any(isinstance(event, Refuse | SpecsplitError) for _, event in events.events), events

    def compute(self) -> bool:
        """Prompts are read, and features that were dropped are computed again."""
        busy = False
        for session in self.sessions.values():
            if session.prefilling:
                busy = True
                self.step(session, 3)
            elif session.drafter.recompute:
                busy = True
                missing = session.drafter.recompute[:3]
                self.computed(session, missing.start, len(missing))
        return busy

    def check(self) -> None:
        for session in self.sessions.values():
            drafter, feed = session.drafter, session.drafter.feed
            assert not isinstance(drafter, DraftSession) or len(drafter.mirror) <= MAX_NODES
            kept_whole = self.limits.retention >= 100
            assert drafter.attached or drafter.needed or not kept_whole, "nobody is too slow or out of step"
            assert feed is None or feed.retained <= self.limits.retention
            assert feed is None or feed.sent - feed.read <= self.limits.window

    def check_at_rest(self) -> None:
        super().check_at_rest()
        for session in self.sessions.values():
            drafter = session.drafter
            if isinstance(drafter, DraftSession):
                assert drafter.feed is not None and drafter.feed.complete
                assert drafter.feed.read == len(session.tokens) - 1, "everything before the root"
                assert len(session.tokens) == 1 or len(drafter.mirror) > 0, "a head that has read everything drafts"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_the_wire_does_heads_draft_what_transformers_would_from_all_features(data: st.DataObject) -> None:
    heads = data.draw(st.lists(st.sampled_from(list(HEADS)), min_size=2, max_size=2))
    prompts = data.draw(st.lists(st.sampled_from([1, 2, 5, 15]), min_size=1, max_size=3))
    window, event_bytes = data.draw(st.sampled_from([1, 3, 8, 100])), data.draw(st.sampled_from([1, 600, 10**6]))
    limits = FeedLimits(window, data.draw(st.sampled_from([8, 12, 100])), event_bytes)
    world = World(heads, prompts, limits, random.Random(data.draw(st.integers(0, 2**16))))
    for _ in range(data.draw(st.integers(5, 60))):
        address = data.draw(st.sampled_from(ADDRESSES))
        match data.draw(st.sampled_from(MOVES)):
            case "step" if world.sessions:
                session = data.draw(st.sampled_from(list(world.sessions.values())))
                world.step(session, data.draw(st.integers(1, 4)))
            case "to drafter":
                world.deliver_to_drafter(address)
            case "expand":
                world.expand(address)
            case "to verifier":
                world.deliver_to_verifier(address)
            case "drop" if data.draw(st.integers(0, 3)) == 0:
                world.drop(address)
            case _:
                world.cool_down()
                world.drafters.retry(world.sessions.values(), world.now)
                world.send_outgoing()
        world.check()
    world.drain(2000)
    world.check_at_rest()
