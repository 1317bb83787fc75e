"""A drafter without a thread: the product's SessionTable, and an expansion that takes what its curve says.

A turn is that of the engine (drafter/specsplit_drafter/engine/engine.py): take what has come, tell what a commit made of what is
there, expand once, or a few times where that is cheap, tell of what grew.
"""

from __future__ import annotations

from benchmarks.lab.cores import Cores
from benchmarks.lab.cost import ExpansionCurve
from benchmarks.lab.events import Timeline
from benchmarks.lab.transport import Wire
from specsplit.draft_events import Refuse, ToVerifier
from specsplit.errors import SpecsplitError
from specsplit.rpc import number_of, sentence_of
from specsplit.v1 import drafter_pb2
from specsplit.wire import drafter as wire
from specsplit.wire.packing import packed
from specsplit_drafter.engine.session_table import Answer, SessionEvent, SessionTable

MAX_MESSAGE_BYTES = 64 * 2**20


class Drafter:
    """One drafter, which may serve several verifiers."""

    def __init__(self, timeline: Timeline, table: SessionTable, curve: ExpansionCurve) -> None:
        self.table = table
        self.expansions = 0
        self.busy_s = 0.0
        self.refusals: list[SpecsplitError] = []
        """What ended drafting for a session."""
        self.wires: list[Wire] = []
        """To every verifier, by number of its stream."""
        self.cores: list[Cores] = []
        """Cores of the verifiers that an expansion takes a share of."""
        self._timeline = timeline
        self._curve = curve
        self._arrived: list[tuple[int, list[tuple[int, SessionEvent]]]] = []
        self._awake = False

    def receive(self, stream: int, message: bytes) -> None:
        """Take in a message of a verifier, now or when the expansion that is going on is over."""
        self._arrived.append((stream, wire.draft_request_events(drafter_pb2.DraftRequest.FromString(message))))
        if not self._awake:
            self._awake = True
            self._timeline.after(0.0, self._turn)

    def _turn(self) -> None:
        arrived, self._arrived = self._arrived, []
        for stream, events in arrived:
            for session, event in events:
                self.table.handle((stream, session), event)
        self._tell()
        before = self.expansions
        seconds = sum(self._expand() for _ in range(self.table.expansions_per_message))
        if self.expansions == before:
            self._tell()
            self._awake = False
            return
        for cores in self.cores:
            cores.take(seconds)
        self._timeline.after(seconds, self._expanded)

    def _expand(self) -> float:
        """Expand once; how long that takes."""
        nodes = self.table.expand()
        if nodes == 0:
            return 0.0
        seconds = self._curve.seconds(nodes)
        self.expansions += 1
        self.busy_s += seconds
        self.table.expansion_cost.observe(seconds)
        return seconds

    def _expanded(self) -> None:
        self._tell()
        self._timeline.after(0.0, self._turn)

    def _tell(self) -> None:
        for stream, answers in self.table.outgoing().items():
            told = [(session, self._as_event(answer)) for session, answer in answers]
            for message in packed(told, MAX_MESSAGE_BYTES):
                self.wires[stream].send(wire.draft_response(message).SerializeToString())

    def _as_event(self, answer: Answer) -> ToVerifier:
        if not isinstance(answer, SpecsplitError):
            return answer
        self.refusals.append(answer)
        return Refuse(number_of(answer), sentence_of(answer))
