"""A request with everything decided that does not depend on where it runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specsplit.generation.answer import Answer
from specsplit.generation.output import Output
from specsplit.requests import Done, GenerateRequest, choice_seed
from specsplit.sessions import DecodeRequest
from specsplit.text.detokenizer import NoText
from specsplit.text.stop import StopScanner
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import Adapter, DrafterKind, Endpoint, Sampling, Stopping, Usage


@dataclass(frozen=True)
class EngineRequest:
    """Model, tokens, seed and bounds of one generation; of its choices those of choice 0."""

    request: GenerateRequest
    model: str
    tokens: tuple[int, ...]
    """Tokens of the prompt."""
    sampling: Sampling
    stopping: Stopping
    context_left: int
    """Tokens that the context has room for behind the prompt."""
    scope: bytes = b""
    """Whose its sessions are, for drafters; empty: like no other session."""
    adapter: Adapter | None = None
    """The target's adapter that it is decoded with; None: none."""

    @property
    def most(self) -> int:
        """Tokens that its answer can have, at most."""
        return (
            self.context_left if self.stopping.max_tokens is None else min(self.context_left, self.stopping.max_tokens)
        )

    def choice(self, index: int) -> EngineRequest:
        """Return the request as one of its choices is decoded: with the seed of that choice, and the prompt told with choice 0 alone."""
        request = replace(self.request, prompt_logprobs=None) if index else self.request
        return replace(
            self, request=request, sampling=replace(self.sampling, seed=choice_seed(self.sampling.seed, index))
        )

    @property
    def told(self) -> int:
        """Tokens of the prompt whose log-probabilities are told: all or none. Who resumes an answer was told them before it began."""
        return 0 if self.request.prompt_logprobs is None or self.request.resume_from else len(self.tokens)

    def answer(self, tokenizer: Tokenizer | None) -> Answer:
        """Begin its answer with the tokens that the caller has already. `tokenizer`: None if nobody reads the text.

        Raises InvalidRequest if the answer cannot begin so.
        """
        request, least = self.request, self.stopping.min_tokens
        scanner = StopScanner(request.stop, include=request.include_stop_str_in_output)
        if tokenizer is None:
            output = Output(NoText(), scanner, lambda _: "", least)
        else:
            output = Output(tokenizer.detokenizer(self.tokens), scanner, tokenizer.piece, least)
        return Answer(output, self.most, request.resume_from, prompt=self.told)

    def done(self, answer: Answer, index: int = 0, *, verifier: str = "", drafter: str = "") -> Done:
        """Make the last message of a choice, whose answer is complete. `verifier` and `drafter`: their member ids; empty: none."""
        assert answer.end is not None, "what goes on has no last message"
        return Done(
            request_id=self.request.request_id,
            reason=answer.end.reason,
            matched_stop=answer.end.matched,
            usage=Usage(len(self.tokens), answer.kept, answer.cached_prompt_tokens),
            speculation=answer.speculation,
            seed=self.sampling.seed,
            verifier=verifier,
            drafter=drafter,
            index=index,
            no_drafts=answer.no_drafts,
        )

    def session(self, answer: Answer, drafter: Endpoint | None) -> DecodeRequest:
        """Make the request to a verifier to decode what is left of its answer."""
        request = self.request
        return DecodeRequest(
            request_id=request.request_id,
            tokens=(*self.tokens, *answer.tokens),
            sampling=self.sampling,
            stopping=self.stopping,
            plan=request.plan,
            drafter=drafter,
            logprobs=request.logprobs,
            any_drafter=drafter is None if request.drafter == DrafterKind.NGRAM else request.drafter is None,
            committed=len(answer.tokens),
            scope=self.scope,
            stream_interval=1 if request.stop else request.stream_interval,
            constraint=request.constraint,
            prompt_logprobs=request.prompt_logprobs if answer.lacks_prompt else None,
            adapter=request.adapter,
        )
