"""A hostile verifier as a drafter sees it: sessions that follow the drafter's own grows, with something wrong now and then."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from benchmarks.fire.fuzz.calls import LISTENS_S, Ended, Method, methods_of
from benchmarks.fire.fuzz.case import Case
from benchmarks.fire.fuzz.scene import Scene, Spite
from specsplit.rpc import DRAFTER_SERVICE
from specsplit.v1 import drafter_pb2 as pb

_MOST: Final = 80
"""Messages of one stream."""
_VOCABULARY: Final = 2048
_CUT_S: Final = 0.2


class _Session:
    """One session, as a verifier keeps it in outline: the nodes that came since the last commit, and how many commits there were."""

    def __init__(self, opened: pb.OpenEvent) -> None:
        self.opened = opened
        self.commits = 0
        self._root = 0
        self._nodes: dict[int, tuple[int, int]] = {}
        """Parent and token, by id."""

    def heard(self, grow: pb.GrowEvent) -> None:
        """Take in a grow that was made after the last commit."""
        if grow.commits == self.commits:
            for node, parent, token in zip(grow.ids, grow.parents, grow.token_ids, strict=False):
                self._nodes[node] = (parent or self._root, token)

    def commit(self, chance: random.Random) -> pb.CommitEvent:
        """Accept the path to some node, or nothing, with a bonus behind it, which is a node as often as not."""
        deepest, path = self._root, list[int]()
        node = chance.choice([*self._nodes]) if self._nodes and chance.random() < 0.8 else self._root
        if node != self._root:
            deepest, path = node, self._path(node)
        below = [(each, token) for each, (parent, token) in self._nodes.items() if parent == deepest]
        self._root, bonus = (
            chance.choice(below) if below and chance.random() < 0.5 else (0, chance.randrange(_VOCABULARY))
        )
        self.commits += 1
        self._nodes.clear()
        accepted = deepest if path else 0
        return pb.CommitEvent(
            number=self.commits, deepest_id=accepted, token_ids=[*path, bonus], step_us=5_000, seen_id=node
        )

    def _path(self, node: int) -> list[int]:
        tokens: list[int] = []
        while node in self._nodes:
            node, token = self._nodes[node]
            tokens.append(token)
        return tokens[::-1]


class HostileStream:
    """One Draft stream in every case, of a few sessions at once."""

    name = "stream"

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._method = next(each for each in methods_of(DRAFTER_SERVICE) if each.name.endswith("Draft"))
        self._opened = _opens(scene, self._method)

    async def act(self, case: Case) -> None:
        """Open one stream, and be hostile on it."""
        spite = Spite.of(case.chance(), most=300)
        address = spite.chance.choice(self._scene.ground.drafters)
        channel, shown = self._scene.channel(address), self._scene.ground.shown("member")
        made: Any = channel.stream_stream(self._method.path)(metadata=shown, timeout=LISTENS_S)
        sessions: dict[int, _Session] = {}
        reading = asyncio.create_task(_read(made, sessions))
        sent = 0
        try:
            for _ in range(spite.chance.randint(1, _MOST)):
                await made.write(self._message(spite, sessions))
                sent += 1
                await asyncio.sleep(spite.chance.choice((0.0, 0.0, 0.002, 0.005)))
            if (drawn := spite.chance.random()) < 0.5:
                await made.done_writing()
                await asyncio.wait([reading], timeout=_CUT_S if drawn < 0.25 else None)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        finally:
            made.cancel()
            answers = await reading
        end = Ended(await made.code(), await made.details() or "", sent, answers)
        self._scene.tally.ended(case, self._method, end)
        if end.code is grpc.StatusCode.DEADLINE_EXCEEDED:
            what = "took no message, or did not end behind the last one,"
            self._scene.tally.fault(
                case, f"{self._method.name} hung: it {what} for {LISTENS_S:g} s, after {sent} messages"
            )

    def _message(self, spite: Spite, sessions: dict[int, _Session]) -> bytes:
        """Mostly what a verifier might say now; one message in eight is fuzz of some kind."""
        events = [self._event(spite, sessions) for _ in range(spite.chance.choice((1, 1, 2, 6)))]
        honest = pb.DraftRequest(events=events).SerializeToString()
        return spite.message(honest, self._method.request, broken=0.005, made=0.02, kept=0.86)

    def _event(self, spite: Spite, sessions: dict[int, _Session]) -> pb.DraftRequestEvent:
        chance = spite.chance
        if not sessions or chance.random() < 0.1:
            number = chance.randint(1, 12) if chance.random() < 0.2 else 1 + max(sessions, default=0)
            session = sessions[number] = _Session(chance.choice(self._opened))
            return pb.DraftRequestEvent(session_id=number, open=session.opened)
        number, session = chance.choice([*sessions.items()])
        drawn = chance.random()
        if drawn < 0.05:
            del sessions[number]
            return pb.DraftRequestEvent(session_id=number, close=pb.CloseEvent())
        if drawn < 0.1:
            return pb.DraftRequestEvent(session_id=number, plan=session.opened.plan)
        if drawn < 0.15:
            data = chance.randbytes(chance.choice((0, 4, 512, 1024, 3072)))
            return pb.DraftRequestEvent(session_id=number, features=pb.FeaturesEvent(first=0, count=1, data=data))
        return pb.DraftRequestEvent(session_id=number, commit=session.commit(chance))


def _opens(scene: Scene, method: Method) -> list[pb.OpenEvent]:
    """How honest verifiers opened sessions."""
    requests = (pb.DraftRequest.FromString(data) for data in scene.corpus.requests(method.path))
    return [event.open for request in requests for event in request.events if event.HasField("open")]


async def _read(made: Any, sessions: dict[int, _Session]) -> int:
    """Take in what the drafter says until the stream is over; how many messages that were."""
    answers = 0
    with suppress(grpc.aio.AioRpcError, asyncio.CancelledError, DecodeError):
        async for data in made:
            answers += 1
            for event in pb.DraftResponse.FromString(data).events:
                if event.session_id in sessions and event.HasField("grow"):
                    sessions[event.session_id].heard(event.grow)
                elif event.HasField("refuse"):
                    sessions.pop(event.session_id, None)
    return answers
