"""The verifier as an engine, for gateways that speak the engine protocol (`specsplit.vllm_engine`) with no coordinator between.

A request is read and answered as a coordinator does it, by the same code (`specsplit.generation`); each of its choices is a session here.
Nobody chooses a drafter for it: the verifier takes one of its roster. Nor is there a queue but that of sessions, or a quota.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from specsplit.engine import BlockBatch, EngineLoad, Operation, Outcome, load_of
from specsplit.errors import Exhausted, SpecsplitError, Unsupported
from specsplit.generation.answer import Answer
from specsplit.generation.burst import parts
from specsplit.generation.choices import all_of, of_choice
from specsplit.generation.engine_request import EngineRequest
from specsplit.generation.listener import Listener
from specsplit.generation.on_demand import OnDemand
from specsplit.generation.preparation import Preparation, RandomSources, check_request
from specsplit.generation.prompt import PromptReader, check_prompt_tokens, field_of
from specsplit.requests import GenerateRequest, TokenPrompt
from specsplit.rpc import Phase, Server
from specsplit.sessions import DecodeEvent, Preempted
from specsplit.settings import VerifierSettings
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import ModelInfo
from specsplit_verifier.edge.block_events import BlockEvents
from specsplit_verifier.edge.operations import Operations
from specsplit_verifier.edge.verifier import Verifier


class VerifierEngine:
    """A verifier that answers requests as they are, and not sessions alone."""

    verifier: Verifier
    """Set when the target is loaded; the server answers UNAVAILABLE until then."""

    def __init__(self, settings: VerifierSettings, server: Server) -> None:
        self._max_sessions = settings.max_sessions
        self._server = server
        self._reader = OnDemand(partial(_reader, settings.model))
        self._preparation = Preparation(RandomSources())
        self._preparing = 0
        self._operations = Operations(settings.profile_dir)
        self._caches = settings.prefix_cache
        self._events: BlockEvents | None = None
        """None: nobody has subscribed yet."""

    async def generate(
        self, request: GenerateRequest, remaining_s: Callable[[], float | None], client: str, listener: Listener
    ) -> None:
        """Do what `Generates.generate` says.

        `client`: the name of the caller, by which sessions are told apart for drafters. The call's own deadline ends it.

        Raises SpecsplitError, and LoadError if text has to be read or written and the tokenizer cannot; an error of one choice ends the
        others.
        """
        info = self.verifier.info
        check_request(request, info.vocabulary)
        tokens, tokenizer = await self._read(request, info)
        prepared = self._preparation.prepare(request, info, tokens, client)
        choices = [(prepared.choice(index), index) for index in range(request.n)]
        await all_of([self._choice(choice, choice.answer(tokenizer), index, listener) for choice, index in choices])

    def refused(self, error: SpecsplitError) -> None:
        """Do nothing: its caller is told, and a verifier keeps no log of requests."""

    def model(self) -> ModelInfo:
        """The target."""
        return self.verifier.info

    def load(self) -> EngineLoad:
        """The sessions of this verifier, whoever asked for them, and its KV."""
        return load_of(self.verifier.load(), self._max_sessions)

    def problem(self) -> str:
        """Why no requests are taken, in a sentence; empty if they are."""
        if self._server.phase is not Phase.SERVING:
            return "the verifier is draining and takes no new requests"
        return ""

    async def operate(self, operation: Operation) -> Outcome:
        """Do what an operator asks for; see `Operations.operate`."""
        return await self._operations.operate(self.verifier, operation)

    async def block_events(self) -> AsyncGenerator[BlockBatch, None]:
        """Yield what is cached of texts, then what changes of it; see `BlockEvents.subscribe`.

        Raises Unsupported if nothing is cached here.
        """
        if not self._caches:
            raise Unsupported("SubscribeKvEvents", "is not supported here: prefix_cache of the verifier is off")
        if self._events is None:
            self._events = BlockEvents(self.verifier.engine.post)
        async with aclosing(self._events.subscribe(self.verifier.failed)) as batches:
            async for batch in batches:
                yield batch

    def close(self) -> None:
        """End the threads that read prompts; no more requests may come."""
        if self._reader.made is not None:
            self._reader.made.close()

    async def _read(self, request: GenerateRequest, info: ModelInfo) -> tuple[tuple[int, ...], Tokenizer | None]:
        """Tokens of the prompt, and the tokenizer if text has to be written for stop strings."""
        prompt = request.prompt
        if isinstance(prompt, TokenPrompt) and not request.stop:
            check_prompt_tokens(field_of(prompt), prompt.tokens, info.vocabulary.size, info.max_context)
            return prompt.tokens, None
        with self._permit():
            reader = await self._reader.get()
            return await reader.read(prompt, info.max_context), reader.tokenizer if request.stop else None

    async def _choice(self, prepared: EngineRequest, answer: Answer, index: int, listener: Listener) -> None:
        """Decode a session until its answer is complete. One that is preempted is computed again here."""
        session = replace(prepared.session(answer, None), from_roster=True)
        await self.verifier.sessions.run(session, partial(_take, answer, index, listener))
        listener.end(prepared.done(answer, index))

    @contextmanager
    def _permit(self) -> Generator[None]:
        """Count a request whose prompt is read. Raises Exhausted for too many, so that what they hold is bounded."""
        if self._preparing >= self._max_sessions:
            raise Exhausted(
                f"{self._preparing} prompts are being read already, as many as max_sessions of this verifier lets; try again in a second",
                retry_after_s=1.0,
            )
        self._preparing += 1
        try:
            yield
        finally:
            self._preparing -= 1


def _take(answer: Answer, index: int, listener: Listener, events: Sequence[DecodeEvent]) -> bool:
    """Take events of a session into an answer -> whether that is complete."""
    for part in parts(events):
        if not isinstance(part, Preempted) and (deltas := answer.hear(part)):
            listener.hear(of_choice(deltas, index))
        if answer.end is not None:
            return True
    return False


def _reader(folder: Path) -> PromptReader:
    return PromptReader(Tokenizer.load(folder))
