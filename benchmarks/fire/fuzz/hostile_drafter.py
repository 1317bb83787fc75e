"""A hostile drafter: a verifier opens sessions there, and it answers with grows that may be right, wrong, or no messages at all.

Whatever it answers, the texts of its sessions are the target's own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from benchmarks.fire.fuzz.calls import methods_of
from benchmarks.fire.fuzz.case import Case
from benchmarks.fire.fuzz.generated import kind_of
from benchmarks.fire.fuzz.recording import decoding
from benchmarks.fire.fuzz.scene import Scene, Spite
from benchmarks.fire.fuzz.servers import serving
from benchmarks.known import Known
from specsplit.rpc import DRAFTER_SERVICE, VERIFIER_SERVICE
from specsplit.v1 import drafter_pb2 as pb
from specsplit.v1 import verifier_pb2
from specsplit.values import Endpoint
from specsplit.wire.verifier import decode_to_wire

HANG_S: Final = 60.0
"""A session that is not over by then hangs."""
_SESSIONS: Final = 3
_DECODE: Final = f"/{VERIFIER_SERVICE}/Decode"
_DRAFT: Final = f"/{DRAFTER_SERVICE}/Draft"
_CODES: Final = tuple(grpc.StatusCode)


class HostileDrafter:
    """In every case another drafter, at an address of its own."""

    name = "drafter"

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._answers = scene.corpus.answers(_DRAFT)
        self._decode = next(each for each in methods_of(VERIFIER_SERVICE) if each.path == _DECODE)

    async def act(self, case: Case) -> None:
        """Have a few sessions decoded with it as their drafter, and hold their texts against what they ought to be."""
        chance = case.chance()
        texts = [(chance.choice(self._scene.known), chance.randint(8, 64)) for _ in range(chance.randint(1, _SESSIONS))]
        handler = _Drafter(Spite.of(chance, most=500), self._answers, [known for known, _ in texts])
        async with serving(handler) as address:
            await asyncio.gather(*(self._decoded(case, address, known, count) for known, count in texts))
        self._scene.tally.answered("DrafterService.Draft", handler.sent)

    async def _decoded(self, case: Case, address: str, known: Known, count: int) -> None:
        request = decode_to_wire(decoding(known, count, Endpoint(f"hostile-{case.number}", address)))
        channel, tokens = self._scene.channel(self._scene.ground.verifier), list[int]()
        made = channel.unary_stream(self._decode.path)(
            request.SerializeToString(), timeout=HANG_S, metadata=self._scene.ground.shown("member")
        )
        try:
            async for data in made:
                tokens += verifier_pb2.DecodeResponse.FromString(data).tokens.token_ids
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:  # other hostile callers take up its places
                what = "a session of an honest verifier ended with"
                self._scene.tally.fault(case, f"{what} {error.code().name}: {error.details()}")
        else:
            if not known.begins_with(tokens, count):
                self._scene.tally.fault(case, f"another text: {tokens} in the place of {known.tokens[:count]}")
        self._scene.tally.status("VerifierService.Decode with a hostile drafter", (await made.code()).name)


class _Told:
    """What the verifier has told of one session."""

    def __init__(self, text: Sequence[int], vocabulary: int) -> None:
        self.commits = 0
        self.committed = 0
        """Tokens behind the prompt."""
        self.last_id = 0
        self._text = text
        self._vocabulary = max(1, vocabulary)

    def grow(self, chance: random.Random) -> pb.GrowEvent:
        """Nodes below the root that a verifier can apply: as often as not the true text, with others beside it."""
        count = chance.choice((0, 1, 3, 8, 40))
        ids = [self.last_id + 1 + step for step in range(count)]
        self.last_id += count
        true = list(self._text[self.committed : self.committed + count]) if chance.random() < 0.5 else []
        tokens = [*true, *(chance.randrange(self._vocabulary) for _ in range(count - len(true)))]
        chained = bool(true) or chance.random() < 0.5
        parents = [(ids[at - 1] if at else 0) if chained else 0 for at in range(count)]
        edges = [-chance.random() for _ in ids]
        return pb.GrowEvent(
            commits=self.commits, ids=ids, parents=parents, token_ids=tokens, edges=edges, resting=chance.random() < 0.3
        )


class _Drafter(grpc.GenericRpcHandler):
    def __init__(self, spite: Spite, answers: Sequence[bytes], texts: Sequence[Known]) -> None:
        self.sent = 0
        self._spite = spite
        self._answers = answers
        self._texts = texts
        self._told: dict[int, _Told] = {}
        self._burst = spite.chance.choice((1, 2, 5, 20, 60))
        self._broken = spite.chance.choice((0.0, 0.002, 0.05))
        self._kept = spite.chance.choice((0.5, 0.9, 0.98))
        self._ends = spite.chance.choice((0.0, 0.02, 0.2))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Whatever is called."""
        return grpc.stream_stream_rpc_method_handler(self._answer)

    async def _answer(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        chance = self._spite.chance
        async for request in requests:
            self._hear(request)
            for _ in range(chance.randint(0, self._burst)):
                self.sent += 1
                yield self._message()
            if chance.random() < self._ends:
                await _leave(chance, context)
                return

    def _hear(self, data: bytes) -> None:
        try:
            events = pb.DraftRequest.FromString(data).events
        except DecodeError:
            return
        for event in events:
            match event.WhichOneof("event"):
                case "open":
                    self._told[event.session_id] = _Told(self._text_of(event.open), event.open.vocabulary.size)
                case "commit" if event.session_id in self._told:
                    told = self._told[event.session_id]
                    told.commits += 1
                    told.committed += len(event.commit.token_ids)
                case "close":
                    self._told.pop(event.session_id, None)
                case _:
                    pass

    def _text_of(self, opened: pb.OpenEvent) -> Sequence[int]:
        """What the target will write, as far as it is known here."""
        prompt = tuple(opened.token_ids)
        return next((each.tokens for each in self._texts if each.prompt == prompt), ())

    def _message(self) -> bytes:
        spite = self._spite
        honest = self._plausible() if self._told or not self._answers else spite.chance.choice(self._answers)
        return spite.message(honest, kind_of(pb.DraftResponse), broken=self._broken, made=0.02, kept=self._kept)

    def _plausible(self) -> bytes:
        """A message about sessions that there are: grows, an honest drafter's answer under their numbers, or a refusal."""
        chance, message = self._spite.chance, pb.DraftResponse()
        for number in chance.choices([*self._told] or [1], k=chance.choice((1, 1, 2, 5))):
            drawn = chance.random()
            if drawn < 0.1 and self._answers:
                message.MergeFromString(chance.choice(self._answers))
                message.events[-1].session_id = number
            elif drawn < 0.12:
                message.events.add(session_id=number, refuse=pb.RefuseEvent(code=chance.randint(1, 16), message="no"))
            elif drawn < 0.15:
                message.events.add(
                    session_id=number, features_read=pb.FeaturesReadEvent(position=chance.randint(0, 99))
                )
            else:
                told = self._told.get(number) or _Told((), 1)
                message.events.add(session_id=number, grow=told.grow(chance))
        return message.SerializeToString()


async def _leave(chance: random.Random, context: Any) -> None:
    """End the stream: quietly, with some status, or with details that are none."""
    drawn = chance.random()
    if drawn < 0.3:
        return
    details = (("grpc-status-details-bin", chance.randbytes(20)),) if drawn < 0.5 else ()
    await context.abort(chance.choice(_CODES[1:]), chance.choice(("", "x" * 3_000, "no: é語🦀", "%s")), details)
