"""A scripted drafter that reads features: over real gRPC, with a real original, and the true text to draft from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from specsplit.draft_events import Close, FeaturesRead, Open, ToDrafter, ToVerifier
from specsplit.errors import InvalidRequest
from specsplit.features import LAST, FeatureLayout, FeatureNeed, Features
from specsplit.model.tensors.feature_codec import decode
from specsplit.speculation import Commit, Grow, Original
from specsplit.v1 import drafter_pb2, drafter_pb2_grpc
from specsplit.values import Endpoint
from specsplit.wire import drafter as wire
from tests.support.rounding import assert_same_sums
from tests.support.trees import NewNode, Seen, grow_nodes


@dataclass
class Reading:
    """One session at the reader."""

    layout: FeatureLayout
    tokens: list[int]
    original: Original
    rows: list[Tensor] = field(default_factory=list[Tensor])
    """[1, width] each, by position."""
    told: list[str] = field(default_factory=list[str])
    """Names of the events, in order."""
    closed: bool = False
    drafted: bool = False
    acknowledged: int = 0
    """It has said that it read everything below this position."""

    @property
    def blocked(self) -> bool:
        """True while features of tokens before the root are missing."""
        return len(self.rows) < len(self.tokens) - 1


class Reader(drafter_pb2_grpc.DrafterServiceServicer):
    """Reads every feature and checks that none is missing. Once it has those of all tokens before the root it drafts from `truth`.

    Below the root it puts a wrong token that it believes in most, then the true ones in a chain, so that the accepted nodes never
    lie side by side in the verifier's batch.
    """

    UpdateWeights = drafter_pb2_grpc.DrafterServiceServicer.UpdateWeights

    def __init__(
        self,
        truth: Sequence[Sequence[int]],
        *,
        lag: int = 0,
        stops: bool = False,
        leaves_after: int | None = None,
    ) -> None:
        self.truth = truth
        self.lag = lag
        """As long as it lacks features it does not say of so many that it has read them."""
        self.stops = stops
        """Once it has drafted for a session it says of nothing more that it has read it."""
        self.leaves_after = leaves_after
        """Commits after which it breaks the stream; None: never."""
        self.commits = 0
        self.sessions: dict[int, Reading] = {}
        self.most_unread = 0
        """Tokens that came beyond what it had said it read."""
        self.failure: AssertionError | None = None

    async def Draft(  # noqa: N802
        self, request_iterator: AsyncIterator[drafter_pb2.DraftRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[drafter_pb2.DraftResponse]:
        try:
            async for response in self.converse(request_iterator, context):
                yield response
        except AssertionError as error:
            self.failure = error
            raise

    async def GetDrafterInfo(  # noqa: N802
        self, request: drafter_pb2.GetDrafterInfoRequest, context: grpc.aio.ServicerContext
    ) -> drafter_pb2.GetDrafterInfoResponse:
        raise AssertionError("no verifier asks")

    async def converse(
        self, request_iterator: AsyncIterator[drafter_pb2.DraftRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[drafter_pb2.DraftResponse]:
        async for message in request_iterator:
            answers: list[tuple[int, ToVerifier]] = []
            touched: dict[int, None] = {}
            for session, event in wire.draft_request_events(message):
                assert not isinstance(event, InvalidRequest), event
                answers += [(session, answer) for answer in self.hear(session, event)]
                touched[session] = None
            if self.leaves_after is not None and self.commits >= self.leaves_after:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
            answers += [(session, self.answer(self.sessions[session])) for session in touched if self.open(session)]
            if answers:
                yield wire.draft_response(answers)

    async def all_closed(self) -> None:
        """Returns once it was told to close every session."""
        while not self.sessions or not all(session.closed for session in self.sessions.values()):
            await asyncio.sleep(0.01)

    def open(self, session: int) -> bool:
        return session in self.sessions and not self.sessions[session].closed

    def hear(self, session: int, event: ToDrafter) -> list[ToVerifier]:
        if isinstance(event, Open):
            root = len(event.tokens) - 1
            original = Original(session, event.tokens[-1], root, event.max_nodes)
            self.sessions[session] = Reading(event.features, list(event.tokens), original)
        reading = self.sessions[session]
        assert not reading.closed, "nothing comes after a close"
        reading.told.append(type(event).__name__)
        match event:
            case Commit():
                reading.original.commit(event)
                reading.tokens += event.tokens
                self.commits += 1
            case Features():
                return self.read(reading, event)
            case Close():
                reading.closed = True
            case Open():
                pass
        return []

    def read(self, reading: Reading, features: Features) -> list[ToVerifier]:
        assert features.first == len(reading.rows), "gapless and in order"
        assert features.end <= len(reading.tokens) - 1, "of tokens before the root only"
        reading.rows += decode(features, reading.layout, dtype=torch.float32).split(1)
        self.most_unread = max(self.most_unread, features.end - reading.acknowledged)
        position = features.end - (self.lag if reading.blocked else 0)
        if position <= reading.acknowledged or (self.stops and reading.drafted):
            return []
        reading.acknowledged = position
        return [FeaturesRead(position)]

    def answer(self, reading: Reading) -> Grow:
        """The true tokens behind the root as far as they are not there yet; nothing while features are missing."""
        nodes: list[NewNode] = []
        if not reading.blocked:
            texts = [text for text in self.truth if list(text[: len(reading.tokens)]) == reading.tokens]
            assert texts, f"{reading.tokens} is nobody's own text"
            text = texts[0]
            nodes = self.chain(reading.original, text[len(reading.tokens) : len(reading.tokens) + 4])
            reading.drafted = True
        grows = [grow_nodes(reading.original, [node], resting=True) for node in nodes]
        return Grow.merge(grows) if grows else grow_nodes(reading.original, [], resting=True)

    def chain(self, original: Original, tokens: Sequence[int]) -> list[NewNode]:
        node, parent = Seen(original.tree).root, 0
        nodes: list[NewNode] = []
        fresh = original._last_id  # pyright: ignore[reportPrivateUsage] (ids ascend by one)
        for token in tokens:
            if node is not None and token in node.children:
                node = node.children[token]
                parent = node.id
                continue
            wrong = (token + 1) % 16
            if node is None or wrong not in node.children:
                nodes.append(NewNode(parent, wrong, -0.01))
                fresh += 1
            nodes.append(NewNode(parent, token, -0.02))
            fresh += 1
            node, parent = None, fresh
        return nodes

    def check(self, session: int, sequence: Sequence[int], expected: Tensor) -> None:
        """What was read is what the target computes for the session's `sequence`: expected [T, width]."""
        reading = self.sessions[session]
        assert reading.rows and reading.tokens == list(sequence[: len(reading.tokens)])
        rows = torch.cat(reading.rows)
        assert_same_sums(rows, expected[: len(rows)])


@asynccontextmanager
async def reading(
    need: FeatureNeed,
    truth: Sequence[Sequence[int]],
    *,
    lag: int = 0,
    stops: bool = False,
    leaves_after: int | None = None,
) -> AsyncIterator[tuple[Reader, Endpoint]]:
    """A reader that serves, and where."""
    reader = Reader(truth, lag=lag, stops=stops, leaves_after=leaves_after)
    server = grpc.aio.server()
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(reader, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield reader, Endpoint("reader", f"127.0.0.1:{port}", need)
    finally:
        await server.stop(0)
    if reader.failure is not None:
        raise reader.failure


def features_of(folder: Path, tokens: Sequence[int], need: FeatureNeed) -> Tensor:
    """What transformers computes: [T, width of the need without a projection]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    with torch.inference_mode():
        states = model(input_ids=torch.tensor([list(tokens)]), output_hidden_states=True).hidden_states
    # transformers norms the last of its list, so that is LAST.
    assert all(layer == LAST or layer < len(states) - 1 for layer in need.layers)
    return torch.cat([states[layer][0] for layer in need.layers], dim=1)


def three_layers(folder: Path) -> Path:
    """Write a tiny random Llama of three layers, width 32, over 16 tokens."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=16, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=0, initializer_range=0.4,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
