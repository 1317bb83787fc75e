"""Verifier and drafter joined by a wire that delays, crosses the two directions, drops peers and reconnects, on a seed.

Both sides are the product's own (Drafting and Session; SessionTable); every message goes through its bytes. Only threads and sockets are
missing, so that hypothesis can choose the interleaving.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.draft_events import Refuse
from specsplit.errors import SpecsplitError
from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.rpc import number_of
from specsplit.sessions import DecodeRequest
from specsplit.v1 import drafter_pb2
from specsplit.values import Endpoint, Plan, Stopping, Vocabulary
from specsplit.wire import drafter as wire
from specsplit_drafter.engine.session_table import SessionTable, TableLimits
from specsplit_verifier.drafters.allowance import Allowance
from specsplit_verifier.drafters.memory import COOL_DOWN_S
from specsplit_verifier.drafters.pool import DrafterPool
from specsplit_verifier.records.events import FromDrafter, Sends
from specsplit_verifier.records.step import Accepted
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.session import Session, StopRule
from tests.drafter.toys import Distribution, TableProposer
from tests.support.ticking import TickingClock
from tests.support.trees import Seen

VOCAB = 6
MAX_NODES = 20
PLAN = Plan(num_steps=3, topk=2, num_draft_tokens=5)
LIMIT = 60
TICKS_S = (0.0, 0.002, 1.0)
"""What passes between two looks of a drafter at its clock. Steps take 20 ms."""


def target(sequence: Sequence[int]) -> int:
    """What the target picks behind a sequence."""
    return (3 * sequence[-1] + len(sequence) % 2 + 1) % VOCAB


def draft(sequence: Sequence[int]) -> Distribution:
    """A draft that is right half of the time as first choice, and now and then not at all."""
    right = target(sequence)
    match len(sequence) % 4:
        case 0 | 1:
            return {right: 0.7, (right + 1) % VOCAB: 0.3}
        case 2:
            return {(right + 1) % VOCAB: 0.6, right: 0.4}
        case _:
            return {(right + 2) % VOCAB: 1.0}


def truth(prompt: Sequence[int], count: int) -> list[int]:
    """The first `count` tokens that the target writes behind a prompt."""
    sequence = list(prompt)
    for _ in range(count):
        sequence.append(target(sequence))
    return sequence[len(prompt) :]


class World:
    """One verifier, two drafters that may be dropped, and the wires between them."""

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self.now = 0.0
        self.addresses: tuple[str, ...] = ("drafter:1", "drafter:2")
        self.drafters = DrafterPool(Vocabulary(VOCAB), MAX_NODES)
        chance = random.Random(len(prompts))
        clock = TickingClock(lambda: chance.choice(TICKS_S))
        self.tables = {
            address: SessionTable(TableProposer(draft, Vocabulary(VOCAB)), TableLimits(16, 4), clock)
            for address in self.addresses
        }
        self.streams: dict[str, int] = dict.fromkeys(self.addresses, 1)
        self.to_drafter: dict[str, deque[bytes]] = {address: deque() for address in self.addresses}
        self.allowances = {address: Allowance(MAX_NODES, 1.0) for address in self.addresses}
        self.to_verifier: dict[str, deque[bytes]] = {address: deque() for address in self.addresses}
        pool = PagePool(64, 4)
        self.sessions: dict[int, Session] = {}
        for number, prompt in enumerate(prompts, start=1):
            request = DecodeRequest(str(number), tuple(prompt), stopping=Stopping(LIMIT))
            session = Session(number, request, PLAN, StopRule(LIMIT), PageTable(pool), list(prompt), len(prompt) - 1)
            self.sessions[number] = session
            self.drafters.attach(session, Endpoint("", self.addresses[number % 2]), self.now)
            self.send(self.drafters.outgoing())
        self.drafters.roster([Endpoint(a, a) for a in self.addresses], (), self.now)
        self.send(self.drafters.outgoing())

    def send(self, sends: Sends) -> None:
        for address, session, event in sends:
            self.allowances[address].sent(session, event)
            self.to_drafter[address].append(wire.draft_request([(session, event)]).SerializeToString())

    def apply_grows(self) -> None:
        self.drafters.apply_grows(self.sessions.values())
        self.send(self.drafters.outgoing())

    def step(self, session: Session) -> None:
        self.apply_grows()
        taken = session.take(session.tree_limits)
        picks: list[int] = []
        paths: list[list[int]] = []
        for token, parent in zip(taken.tokens, taken.parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else session.tokens[:-1]), token])
            picks.append(target(paths[-1]))
        path = taken.accept(picks)
        result = session.commit(taken, Accepted(path, picks[path[-1]]), self.now)
        if result.finished is not None:
            self.drafters.close(session)
            self.send(self.drafters.outgoing())
            del self.sessions[session.id]
        elif result.reroot.commit is not None and isinstance(session.drafter, DraftSession):
            self.send([(session.drafter.address, session.id, result.reroot.commit)])

    def deliver_to_drafter(self, address: str) -> None:
        if self.to_drafter[address]:
            message = drafter_pb2.DraftRequest.FromString(self.to_drafter[address].popleft())
            for session, event in wire.draft_request_events(message):
                self.tables[address].handle((self.streams[address], session), event)

    def expand(self, address: str) -> int:
        table = self.tables[address]
        expanded = table.expand()
        for stream, events in table.outgoing().items():
            assert stream == self.streams[address]
            told = [(s, _refusal(e) if isinstance(e, SpecsplitError) else e) for s, e in events]
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
            events = FromDrafter(address, list(wire.draft_response_events(message)))
            self.allowances[address].heard(events.events)
            self.drafters.received(events, self.sessions, self.now)
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
        """Deliver everything, and let the drafters grow until they rest."""
        for _ in range(400):
            busy = False
            for address in self.addresses:
                while self.to_drafter[address]:
                    self.deliver_to_drafter(address)
                busy |= self.expand(address) > 0
                while self.to_verifier[address]:
                    busy = True
                    self.deliver_to_verifier(address)
            if not busy and not any(self.to_drafter.values()):
                self.apply_grows()
                return
        raise AssertionError("the drafters never rest")


def _refusal(error: SpecsplitError) -> Refuse:
    return Refuse(number_of(error), str(error))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_the_wire_does_the_text_is_the_targets_own(data: st.DataObject) -> None:
    prompts = data.draw(st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4), min_size=1, max_size=3))
    world = World(prompts)
    written = dict(world.sessions)
    for _ in range(data.draw(st.integers(5, 80))):
        address = data.draw(st.sampled_from(world.addresses))
        match data.draw(
            st.sampled_from(["step", "to drafter", "expand", "to verifier", "step", "to verifier", "drop", "time"])
        ):
            case "step" if world.sessions:
                world.step(data.draw(st.sampled_from(list(world.sessions.values()))))
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
        for session in written.values():
            assert session.tokens[session.prompt_length :] == truth(session.request.tokens, session.generated)
            assert not isinstance(session.drafter, DraftSession) or len(session.drafter.mirror) <= MAX_NODES
    world.drain()
    for session in world.sessions.values():
        if isinstance(session.drafter, DraftSession):
            address, mirror = session.drafter.address, session.drafter.mirror
            original = world.tables[address].growth_of((world.streams[address], session.id)).original
            assert Seen(mirror.tree).snapshot() == Seen(original.tree).snapshot()
            assert mirror.resting
    open_sessions = sum(table.num_sessions for table in world.tables.values())
    assert open_sessions == sum(session.drafter.attached for session in world.sessions.values())
