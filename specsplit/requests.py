"""What a program asks of specsplit, and what it gets back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from specsplit.errors import InvalidRequest
from specsplit.splitmix import GOLDEN, draw
from specsplit.stream_interval import check_stream_interval
from specsplit.values import (
    Constraint,
    FinishReason,
    NoDrafts,
    PlanChanges,
    PromptLogprobs,
    Sampling,
    SpeculationStatistics,
    Stopping,
    TokenLogprob,
    Usage,
    check_logprobs,
)
from specsplit.values.checks import check_name
from specsplit.values.lean import lean

MAX_CHOICES: Final = 16
"""Choices of one request, at most."""
MAX_PRIORITY: Final = 9
"""The highest priority that a request may have."""


@dataclass(frozen=True)
class TextPrompt:
    """Plain text; special tokens are added as the tokenizer does."""

    text: str


@dataclass(frozen=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    """"system", "user" or "assistant", as the chat template expects."""
    content: str


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation, rendered with the model's chat template."""

    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True)
class TokenPrompt:
    """Token ids, used as they are."""

    tokens: tuple[int, ...]


Prompt = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True)
class GenerateRequest:
    """One generation. Raises InvalidRequest for a value out of range."""

    prompt: Prompt
    request_id: str = ""
    """For logs and traces. Empty: the coordinator draws one."""
    sampling: Sampling = field(default_factory=Sampling)
    """How tokens are picked. The seed in it counts only if `seeded`."""
    seeded: bool = False
    """False: the coordinator draws a seed and returns it."""
    stopping: Stopping = field(default_factory=Stopping)
    stop: tuple[str, ...] = ()
    """End before the first of these appears in the output."""
    drafter: str | None = None
    """"standalone", "ngram" or "none"; None: the best available."""
    plan: PlanChanges = field(default_factory=PlanChanges)
    logprobs: int | None = None
    """Likeliest tokens to tell beside each one, with their log-probabilities and its own; None: no log-probabilities at all."""
    n: int = 1
    """Completions of the prompt, the choices; each has a seed of its own (see `choice_seed`)."""
    resume_from: tuple[int, ...] = ()
    """Tokens of the answer that the caller has already, from the front, of the same request: only the rest is generated and streamed."""
    priority: int = 0
    """Among requests that wait, those of higher priority are served first."""
    stream_interval: int = 1
    """Tokens of a choice that are sent at once, at least; the first are sent as they come."""
    include_stop_str_in_output: bool = False
    """True: a stop string that ends the output is part of its text."""
    constraint: Constraint | None = None
    """What the output is held to; None: nothing."""
    prompt_logprobs: int | None = None
    """Likeliest tokens to tell beside each token of the prompt but the first, with their log-probabilities and its own, given the tokens
    before it: of the target's own logits, before temperature, bias, penalties and filters. They come before the first token of choice 0,
    once for all choices, and none with `resume_from`. None: nothing is told of the prompt."""
    adapter: str = ""
    """Name of the target's adapter to answer with; empty: none, the target as it is."""

    def __post_init__(self) -> None:
        check_logprobs(self.logprobs)
        check_logprobs(self.prompt_logprobs, "prompt_logprobs")
        check_stream_interval(self.stream_interval)
        check_name("request_id", self.request_id)
        check_name("drafter", self.drafter or "")
        check_name("adapter", self.adapter)
        if not 0 <= self.priority <= MAX_PRIORITY:
            raise InvalidRequest("priority", f"is {self.priority}, expected 0..{MAX_PRIORITY}")
        if not 1 <= self.n <= MAX_CHOICES:
            raise InvalidRequest("n", f"is {self.n}, expected 1..{MAX_CHOICES}")
        if self.resume_from:
            self._check_resumed()

    def _check_resumed(self) -> None:
        """Raise InvalidRequest where what was generated earlier could not be gone on with."""
        if self.n > 1:
            raise InvalidRequest("resume_from", f"goes with one choice only, and n is {self.n}; resume each by itself")
        if not (self.seeded or self.sampling.greedy):
            raise InvalidRequest("resume_from", "needs the seed of the answer that it is of; give the one of its end")


def choice_seed(seed: int, index: int) -> int:
    """The seed of a choice of a request with this seed: of choice 0 the request's own, of choice i the i-th draw of splitmix64 from it.

    A request for one choice with that seed gives the same text.
    """
    return draw(seed + (index - 1) * GOLDEN) if index else seed


@lean(slots=False)
class Delta:
    """Some more output of one choice."""

    text: str
    """Final text: whole characters, nothing that may begin a stop string; may be empty."""
    tokens: tuple[int, ...]
    """Tokens committed since the last delta."""
    num_correct_drafts: int = 0
    """How many of them, from the front, were accepted drafts."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of the tokens, if the request asked for them."""
    index: int = 0
    """Which choice it is of."""
    prompt: PromptLogprobs | None = None
    """More of the prompt, in order and without a gap; such a delta has neither text nor tokens. None: nothing of that."""


@dataclass(frozen=True)
class Done:
    """The end of a choice."""

    request_id: str
    reason: FinishReason
    matched_stop: str | int | None
    """The stop string or the stop token id that ended it; None: nothing in the output did."""
    usage: Usage
    speculation: SpeculationStatistics
    seed: int
    verifier: str
    """Member id of the verifier that decoded it."""
    drafter: str = ""
    """Member id of the drafter chosen at the start; empty: none."""
    index: int = 0
    """Which choice it is of."""
    no_drafts: NoDrafts | None = None
    """Why its steps had no drafts, or hardly any; None: they had some, there was no step, or it is not known."""


GenerateEvent = Delta | Done
"""What a request gets: of each choice any number of Deltas, then Done."""
