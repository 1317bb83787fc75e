"""Verifier and drafters with heads joined by a wire that delays, crosses the two directions and drops peers, on a seed.

As test_loopback, with features: prompts are prefilled in chunks, windows and retention are small, drafters are of different kinds (so that
one that takes over needs other features, which are recomputed), and every child that a head proposes is compared with what transformers
computes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.draft_events import Refuse
from specsplit.errors import SpecsplitError
from specsplit.features import FeatureFormat, FeatureNeed, Features
from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.model.tensors.feature_codec import encode
from specsplit.rpc import number_of
from specsplit.sessions import DecodeRequest
from specsplit.speculation import Draft
from specsplit.v1 import drafter_pb2
from specsplit.values import Endpoint, Plan, Stopping
from specsplit.wire import drafter as wire
from specsplit_drafter.engine.session_table import SessionTable, TableLimits
from specsplit_verifier.drafters.allowance import Allowance
from specsplit_verifier.drafters.memory import COOL_DOWN_S
from specsplit_verifier.drafters.pool import DrafterPool
from specsplit_verifier.records.events import FromDrafter, Sends
from specsplit_verifier.records.feed import FeatureSource, FeedLimits, Recipe
from specsplit_verifier.records.step import Accepted
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.session import Session, StopRule
from tests.drafter.head_toys import HEADS, VOCABULARY, features_of, head_of
from tests.drafter.test_heads import Checked
from tests.support.ticking import TickingClock
from tests.support.trees import Seen

MAX_NODES = 30
LIMIT = 40
HIDDEN = 32
ADDRESSES: tuple[str, ...] = ("drafter:1", "drafter:2")
TICKS_S = (0.0, 0.002, 1.0)
"""What passes between two looks of a drafter at its clock. Steps take 20 ms."""


def recipe_of(need: FeatureNeed) -> Recipe:
    return Recipe(need.layers, "", need.layout(HIDDEN, FeatureFormat.FLOAT32))


class World:
    """One verifier, two drafters with heads that may be dropped, and the wires between them."""

    def __init__(self, heads: Sequence[str], prompts: Sequence[int], limits: FeedLimits, chance: random.Random) -> None:
        """prompts: how long each is."""
        self.now = 0.0
        self.chance = chance
        self.limits = limits
        self.endpoints = [
            Endpoint(address, address, head_of(name).shape.need) for address, name in zip(ADDRESSES, heads, strict=True)
        ]
        self.drafters = DrafterPool(VOCABULARY, MAX_NODES, FeatureSource(recipe_of, limits))
        budget, pages = chance.choice([1, 3, 512]), PagePool(256, 4)
        clock = TickingClock(lambda: chance.choice(TICKS_S))
        self.tables = {
            address: SessionTable(Checked(name, budget, 1024), TableLimits(16, chance.choice([4, 32])), clock)
            for address, name in zip(ADDRESSES, heads, strict=True)
        }
        self.streams = dict.fromkeys(ADDRESSES, 1)
        self.to_drafter: dict[str, deque[bytes]] = {address: deque() for address in ADDRESSES}
        self.allowances = {address: Allowance(MAX_NODES, 1.0) for address in ADDRESSES}
        self.to_verifier: dict[str, deque[bytes]] = {address: deque() for address in ADDRESSES}
        self.sessions: dict[int, Session] = {}
        plan = Plan(num_steps=chance.choice([1, 3]), topk=2, num_draft_tokens=5, draft_ahead=chance.random() < 0.7)
        for number, length in enumerate(prompts, start=1):
            prompt = [chance.randrange(VOCABULARY.size) for _ in range(length)]
            request = DecodeRequest(str(number), tuple(prompt), stopping=Stopping(LIMIT))
            session = Session(number, request, plan, StopRule(LIMIT), PageTable(pages), prompt)
            self.sessions[number] = session
            self.drafters.attach(session, self.endpoints[number % 2], self.now)
            self.send(self.drafters.outgoing())
        self.drafters.roster(self.endpoints, (), self.now)
        self.send(self.drafters.outgoing())

    def send(self, sends: Sends) -> None:
        for address, session, event in sends:
            self.allowances[address].sent(session, event)
            self.to_drafter[address].append(wire.draft_request([(session, event)]).SerializeToString())

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

    def apply_grows(self) -> None:
        self.drafters.apply_grows(self.sessions.values())
        self.send(self.drafters.outgoing())

    def verify(self, session: Session) -> int:
        """Tokens whose features it computed."""
        self.apply_grows()
        taken = session.take(session.tree_limits)
        for _ in range(self.chance.randrange(3)):
            self.deliver_to_verifier(self.chance.choice(ADDRESSES))  # while the step runs
        self.apply_grows()
        picks = self.picks(taken)
        path = taken.accept(picks)
        result = session.commit(taken, Accepted(path, picks[path[-1]]), self.now)
        if result.finished is not None:
            self.drafters.close(session)
            self.send(self.drafters.outgoing())
            del self.sessions[session.id]
        elif result.reroot.commit is not None and isinstance(session.drafter, DraftSession):
            self.send([(session.drafter.address, session.id, result.reroot.commit)])
        return len(path)

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
            self.send(self.drafters.outgoing())

    def deliver_to_drafter(self, address: str) -> None:
        if self.to_drafter[address]:
            message = drafter_pb2.DraftRequest.FromString(self.to_drafter[address].popleft())
            for session, event in wire.draft_request_events(message):
                self.tables[address].handle((self.streams[address], session), event)

    def expand(self, address: str) -> int:
        expanded = self.tables[address].expand()
        for stream, events in self.tables[address].outgoing().items():
            assert stream == self.streams[address]
            told = [(s, Refuse(number_of(e), str(e)) if isinstance(e, SpecsplitError) else e) for s, e in events]
            self.to_verifier[address].append(wire.draft_response(told).SerializeToString())
        return expanded

    def deliver_to_verifier(self, address: str) -> None:
        if self.to_verifier[address]:
            data = self.to_verifier[address].popleft()
            self.allowances[address].parse(
                len(data)
            )  # an honest drafter causes no more work than this, whatever the wire does
            message = wire.draft_response_message(data)
            self.allowances[address].read(wire.bulk_of(message))
            events = list(wire.draft_response_events(message))
            self.allowances[address].heard(events)
            assert not any(isinstance(event, Refuse | SpecsplitError) for _, event in events), events
            self.drafters.received(FromDrafter(address, events), self.sessions, self.now)
            self.send(self.drafters.outgoing())

    def drop(self, address: str) -> None:
        """The stream breaks with everything on it; a later open finds a new one."""
        self.tables[address].close_stream(self.streams[address])
        self.streams[address] += 1
        self.to_drafter[address].clear()
        self.to_verifier[address].clear()
        self.allowances[address] = Allowance(MAX_NODES, 1.0)
        self.drafters.lost(address, self.sessions.values(), self.now)
        self.send(self.drafters.outgoing())

    def drain(self) -> None:
        """Prefill, recompute and deliver everything, and let the drafters grow until they rest."""
        for _ in range(2000):
            busy = False
            for address in ADDRESSES:
                while self.to_drafter[address]:
                    self.deliver_to_drafter(address)
                busy |= self.expand(address) > 0
                while self.to_verifier[address]:
                    busy = True
                    self.deliver_to_verifier(address)
            for session in self.sessions.values():
                if session.prefilling:
                    busy = True
                    self.step(session, 3)
                elif session.drafter.recompute:
                    busy = True
                    missing = session.drafter.recompute[:3]
                    self.computed(session, missing.start, len(missing))
            if not busy and not any(self.to_drafter.values()):
                self.apply_grows()
                return
        raise AssertionError("the drafters never rest")

    def check(self) -> None:
        for session in self.sessions.values():
            drafter, feed = session.drafter, session.drafter.feed
            assert not isinstance(drafter, DraftSession) or len(drafter.mirror) <= MAX_NODES
            kept_whole = self.limits.retention >= 100
            assert drafter.attached or drafter.needed or not kept_whole, "nobody is too slow or out of step"
            assert feed is None or feed.retained <= self.limits.retention
            assert feed is None or feed.sent - feed.read <= self.limits.window

    def check_at_rest(self) -> None:
        for session in self.sessions.values():
            drafter = session.drafter
            if not isinstance(drafter, DraftSession):
                continue
            key = (self.streams[drafter.address], session.id)
            original = self.tables[drafter.address].growth_of(key).original
            assert Seen(drafter.mirror.tree).snapshot() == Seen(original.tree).snapshot()
            assert drafter.mirror.resting
            assert drafter.feed is not None and drafter.feed.complete
            assert drafter.feed.read == len(session.tokens) - 1, "everything before the root"
            assert len(session.tokens) == 1 or len(drafter.mirror) > 0, "a head that has read everything drafts"
        drafted = sum(session.drafter.attached for session in self.sessions.values())
        assert sum(table.num_sessions for table in self.tables.values()) == drafted


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
        match data.draw(
            st.sampled_from(["step", "to drafter", "expand", "to verifier", "step", "to verifier", "drop", "time"])
        ):
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
                world.apply_grows()
                world.now += COOL_DOWN_S
                world.drafters.retry(world.sessions.values(), world.now)
                world.send(world.drafters.outgoing())
        world.check()
    world.drain()
    world.check_at_rest()
