"""Verifier and drafters joined by wires that a test moves by hand: it delays them, crosses the two directions, drops peers and reconnects.

Both sides are the product's own (Drafting and Session; SessionTable); every message goes through its bytes. Only threads and sockets are
missing, so that hypothesis can choose the interleaving.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specsplit.draft_events import Refuse
from specsplit.errors import SpecsplitError
from specsplit.rpc import number_of
from specsplit.speculation import Draft
from specsplit.v1 import drafter_pb2
from specsplit.values import Endpoint
from specsplit.wire import drafter as wire
from specsplit_drafter.engine.session_table import SessionTable
from specsplit_verifier.drafters.allowance import Allowance
from specsplit_verifier.drafters.memory import COOL_DOWN_S
from specsplit_verifier.drafters.pool import DrafterPool
from specsplit_verifier.records.events import FromDrafter, Sends
from specsplit_verifier.records.step import Accepted
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.session import Session
from tests.support.trees import Seen

ADDRESSES: tuple[str, ...] = ("drafter:1", "drafter:2")
MOVES = ("step", "to drafter", "expand", "to verifier", "step", "to verifier", "drop", "time")
"""What may happen next, with what should happen more often twice."""
TICKS_S = (0.0, 0.002, 1.0)
"""What passes between two looks of a drafter at its clock. Steps take 20 ms."""


@dataclass
class Wire:
    """What is under way between the verifier and one drafter, and the work that the drafter may cause by it."""

    stream: int
    allowance: Allowance
    to_drafter: deque[bytes] = field(default_factory=deque[bytes])
    to_verifier: deque[bytes] = field(default_factory=deque[bytes])


class Loopback:
    """One verifier, two drafters that may be dropped, and the wires between them."""

    def __init__(self, drafters: DrafterPool, tables: Mapping[str, SessionTable], max_nodes: int) -> None:
        self.now = 0.0
        self.drafters = drafters
        self.tables = tables
        self.max_nodes = max_nodes
        self.wires = {address: self._wire(1) for address in ADDRESSES}
        self.sessions: dict[int, Session] = {}

    def attach(self, session: Session, drafter: Endpoint) -> None:
        """A session begins with this drafter."""
        self.sessions[session.id] = session
        self.drafters.attach(session, drafter, self.now)
        self.send_outgoing()

    def send(self, sends: Sends) -> None:
        for address, session, event in sends:
            self.wires[address].allowance.sent(session, event)
            self.wires[address].to_drafter.append(wire.draft_request([(session, event)]).SerializeToString())

    def send_outgoing(self) -> None:
        self.send(self.drafters.outgoing())

    def apply_grows(self) -> None:
        self.drafters.apply_grows(self.sessions.values())
        self.send_outgoing()

    def commit(self, session: Session, taken: Draft, picks: Sequence[int]) -> int:
        """How many tokens of its draft a session commits for what the target picked behind each; its drafter hears of it."""
        path = taken.accept(picks)
        result = session.commit(taken, Accepted(path, picks[path[-1]]), self.now)
        if result.finished is not None:
            self.drafters.close(session)
            self.send_outgoing()
            del self.sessions[session.id]
        elif isinstance(session.drafter, DraftSession):
            self.send([(session.drafter.address, session.id, commit) for commit in result.reroot.commits])
        return len(path)

    def deliver_to_drafter(self, address: str) -> None:
        if self.wires[address].to_drafter:
            message = drafter_pb2.DraftRequest.FromString(self.wires[address].to_drafter.popleft())
            for session, event in wire.draft_request_events(message):
                self.tables[address].handle((self.wires[address].stream, session), event)

    def expand(self, address: str) -> int:
        expanded = self.tables[address].expand()
        for stream, events in self.tables[address].outgoing().items():
            assert stream == self.wires[address].stream
            told = [(s, Refuse(number_of(e), str(e)) if isinstance(e, SpecsplitError) else e) for s, e in events]
            self.wires[address].to_verifier.append(wire.draft_response(told).SerializeToString())
        return expanded

    def deliver_to_verifier(self, address: str) -> None:
        """An honest drafter causes no more work than its allowance, whatever the wire does."""
        if self.wires[address].to_verifier:
            data, allowance = self.wires[address].to_verifier.popleft(), self.wires[address].allowance
            allowance.parse(len(data))
            message = wire.draft_response_message(data)
            allowance.read(wire.bulk_of(message))
            events = FromDrafter(address, list(wire.draft_response_events(message)))
            allowance.heard(events.events)
            self.heard(events)
            self.drafters.received(events, self.sessions, self.now)
            self.send_outgoing()

    def heard(self, events: FromDrafter) -> None:
        """A place for what a test says of every message."""

    def drop(self, address: str) -> None:
        """The stream breaks with everything on it; a later open finds a new one."""
        self.tables[address].close_stream(self.wires[address].stream)
        self.wires[address] = self._wire(self.wires[address].stream + 1)
        self.drafters.lost(address, self.sessions.values(), self.now)
        self.send_outgoing()

    def cool_down(self) -> None:
        """So much time passes that a drafter may be asked again."""
        self.apply_grows()
        self.now += COOL_DOWN_S

    def drain(self, rounds: int) -> None:
        """Everything is delivered and computed, and the drafters grow until they rest, in so many rounds."""
        for _ in range(rounds):
            busy = False
            for address in ADDRESSES:
                while self.wires[address].to_drafter:
                    self.deliver_to_drafter(address)
                busy |= self.expand(address) > 0
                while self.wires[address].to_verifier:
                    busy = True
                    self.deliver_to_verifier(address)
            busy |= self.compute()
            if not busy and not any(each.to_drafter for each in self.wires.values()):
                self.apply_grows()
                return
        raise AssertionError("the drafters never rest")

    def compute(self) -> bool:
        """Something that drafters wait for is computed, if there is anything."""
        return False

    def check_at_rest(self) -> None:
        """Both sides hold the same trees, and drafters no others."""
        for session in self.sessions.values():
            if isinstance(session.drafter, DraftSession):
                address, mirror = session.drafter.address, session.drafter.mirror
                original = self.tables[address].growth_of((self.wires[address].stream, session.id)).original
                assert Seen(mirror.tree).snapshot() == Seen(original.tree).snapshot()
                assert mirror.resting
        open_sessions = sum(table.num_sessions for table in self.tables.values())
        assert open_sessions == sum(session.drafter.attached for session in self.sessions.values())

    def _wire(self, stream: int) -> Wire:
        return Wire(stream, Allowance(self.max_nodes, 1.0))
