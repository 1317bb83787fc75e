"""The nouns that every service speaks: frozen values, no behaviour beyond checking and deriving.

Words are those of docs/design.md; tokens are vocabulary ids (ints >= 0), positions count from 0 at the first prompt token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from specsplit.errors import Incompatible, InvalidRequest, quoted
from specsplit.features import FeatureNeed


def _require(condition: bool, field_name: str, problem: str) -> None:
    if not condition:
        raise InvalidRequest(field_name, problem)


def _said(changes: PlanChanges | TraceChanges) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in vars(changes).items() if value is not None}


MAX_TEMPERATURE: Final = 10_000.0
"""Logits that lie 1,000 apart are all but equally likely at it; a bound keeps logits divided by it within float32."""
MAX_REPETITION_PENALTY: Final = 1e6
"""So it is to the other side: logits divided by its inverse are still within float32."""
MAX_BIAS: Final = 100.0
MAX_BIASES: Final = 1_024
"""Tokens that one request may bias."""


@dataclass(frozen=True)
class Sampling:
    """How the target picks a token. Raises InvalidRequest for a value out of range."""

    temperature: float = 0.0
    """0 means argmax; otherwise logits are divided by it. At most MAX_TEMPERATURE."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probabilities (after top_k) sum to at least this."""
    min_p: float = 0.0
    """Drop tokens whose probability is below this times the likeliest token's."""
    seed: int = 0
    """Selects the noise; 64 bits unsigned. With the same seed, prompt and target the text is the same."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, bias) pairs, each token once: the bias, in [-MAX_BIAS, MAX_BIAS], is added to the token's logit before anything else."""
    repetition_penalty: float = 1.0
    """A logit above 0 is divided by it, one below 0 multiplied, of every token that the prompt or the output has had. 1: none."""
    frequency_penalty: float = 0.0
    """Taken off a token's logit for every time that it was generated; in [-2, 2]."""
    presence_penalty: float = 0.0
    """Taken off a token's logit once if it was generated; in [-2, 2]."""

    def __post_init__(self) -> None:
        _require(
            0 <= self.temperature <= MAX_TEMPERATURE,
            "temperature",
            f"is {self.temperature}, expected a number in [0, {MAX_TEMPERATURE:,.0f}]",
        )
        _require(self.top_k >= 0, "top_k", f"is {self.top_k}, expected 0 (all) or a positive count")
        _require(0 < self.top_p <= 1, "top_p", f"is {self.top_p}, expected a number in (0, 1]")
        _require(0 <= self.min_p <= 1, "min_p", f"is {self.min_p}, expected a number in [0, 1]")
        _require(0 <= self.seed < 2**64, "seed", f"is {self.seed}, expected an unsigned 64-bit integer")
        _require(
            1 / MAX_REPETITION_PENALTY <= self.repetition_penalty <= MAX_REPETITION_PENALTY,
            "repetition_penalty",
            f"is {self.repetition_penalty}, expected 1 (none) or a number above 0, from {1 / MAX_REPETITION_PENALTY} "
            f"to {MAX_REPETITION_PENALTY:,.0f}",
        )
        _require(
            -2 <= self.frequency_penalty <= 2,
            "frequency_penalty",
            f"is {self.frequency_penalty}, expected a number in [-2, 2]",
        )
        _require(
            -2 <= self.presence_penalty <= 2,
            "presence_penalty",
            f"is {self.presence_penalty}, expected a number in [-2, 2]",
        )
        self._check_bias()

    def _check_bias(self) -> None:
        entries = len(self.logit_bias)
        _require(entries <= MAX_BIASES, "logit_bias", f"has {entries:,} entries, expected at most {MAX_BIASES:,}")
        for token, bias in self.logit_bias:
            _require(token >= 0, "logit_bias", f"has the token id {token}, expected none below 0")
            _require(
                -MAX_BIAS <= bias <= MAX_BIAS,
                f"logit_bias[{token}]",
                f"is {bias}, expected a number in [{-MAX_BIAS:.0f}, {MAX_BIAS:.0f}]",
            )
        _require(len(dict(self.logit_bias)) == entries, "logit_bias", "names a token twice")

    @property
    def greedy(self) -> bool:
        """True if nothing is drawn: the pick is the argmax of the logits, less what bias and penalties do to them."""
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """True if the pick depends on which tokens the text has had."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def plain(self) -> bool:
        """True if the pick is the argmax of the logits as they are."""
        return self.temperature == 0 and not self.logit_bias and not self.penalised


@dataclass(frozen=True)
class Plan:
    """How much to speculate for a session. Raises InvalidRequest for a value out of range."""

    num_steps: int = 5
    """Deepest node below the root that a step may verify; 0 turns speculation off."""
    topk: int = 4
    """At most this many children of one node are verified in one step."""
    num_draft_tokens: int = 16
    """At most this many tokens of the session in one step, the root included."""
    wait_budget_us: int = 20_000
    """Longest wait for a grow after a miss, in microseconds."""
    draft_ahead: bool = True
    """False makes the drafter rest while a step is in flight (the serial loop; for comparison)."""

    def __post_init__(self) -> None:
        _require(0 <= self.num_steps <= 64, "plan.num_steps", f"is {self.num_steps}, expected 0..64")
        _require(1 <= self.topk <= 64, "plan.topk", f"is {self.topk}, expected 1..64")
        _require(
            1 <= self.num_draft_tokens <= 256, "plan.num_draft_tokens", f"is {self.num_draft_tokens}, expected 1..256"
        )
        _require(
            0 <= self.wait_budget_us <= 60_000_000,
            "plan.wait_budget_us",
            f"is {self.wait_budget_us}, expected 0..60,000,000",
        )

    @property
    def speculates(self) -> bool:
        """False if a step under this plan takes the root alone."""
        return self.num_steps > 0 and self.num_draft_tokens > 1


@dataclass(frozen=True)
class PlanChanges:
    """What a request, or an operator, wants different from the verifier's default plan; None leaves a field as it is."""

    num_steps: int | None = None
    topk: int | None = None
    num_draft_tokens: int | None = None
    wait_budget_us: int | None = None
    draft_ahead: bool | None = None

    def over(self, default: Plan) -> Plan:
        """The default with these changes. Raises InvalidRequest for a value out of range."""
        return replace(default, **_said(self))

    def after(self, earlier: PlanChanges) -> PlanChanges:
        """These changes and those made before, where these say nothing."""
        return replace(earlier, **_said(self))


class Adaptive(StrEnum):
    """Who decides how much is speculated where nobody else says."""

    STATIC = "static"
    """Nobody: it stays at the default plan."""
    EMA = "ema"
    """SGLang's tiers of num_steps, moved by an average of accepted drafts."""


SERVICES = ("coordinator", "verifier", "drafter")
"""The kinds of process, in the order in which a request meets them."""


@dataclass(frozen=True)
class TraceScope:
    """What is traced. Raises InvalidRequest for a value out of range."""

    level: int = 1
    """0: nothing; 1: stages of a request; 2: its steps too; 3: the parts of a step too."""
    ratio: float = 1.0
    """Share of the requests that are traced, of those whose caller has not decided that already."""
    modules: tuple[str, ...] = ()
    """Services that make spans; empty: all of them."""

    def __post_init__(self) -> None:
        _require(0 <= self.level <= 3, "trace_level", f"is {self.level}, expected 0..3")
        _require(0 <= self.ratio <= 1, "trace_ratio", f"is {self.ratio}, expected a number in [0, 1]")
        for module in self.modules:
            _require(
                module in SERVICES, "trace_modules", f"has {quoted(module)}, expected some of {', '.join(SERVICES)}"
            )

    def level_of(self, service: str) -> int:
        """The level that holds for `service`."""
        return self.level if not self.modules or service in self.modules else 0


@dataclass(frozen=True)
class TraceChanges:
    """What an operator wants traced different from a service's own settings; None leaves a field as it is."""

    level: int | None = None
    ratio: float | None = None
    modules: tuple[str, ...] | None = None
    """All of them by name for all: a list that is there is not empty."""

    def __post_init__(self) -> None:
        _require(self.modules != (), "trace_modules", f"is empty, expected some of {', '.join(SERVICES)}")

    def over(self, default: TraceScope) -> TraceScope:
        """The default with these changes. Raises InvalidRequest for a value out of range."""
        return replace(default, **_said(self))

    def after(self, earlier: TraceChanges) -> TraceChanges:
        """These changes and those made before, where these say nothing."""
        return replace(earlier, **_said(self))


@dataclass(frozen=True)
class Vocabulary:
    """What token ids mean: their count, and a digest of the id-to-text table where one is known."""

    size: int
    digest: str = ""
    """Hex SHA-256 of the table; empty if the model folder holds no tokenizer."""

    def fits(self, other: Vocabulary) -> bool:
        """True if the two agree as far as both sides know."""
        return self.size == other.size and (not self.digest or not other.digest or self.digest == other.digest)

    def __str__(self) -> str:
        return f"{self.size} tokens, digest {self.digest[:12] or 'unknown'}"


class DrafterKind(StrEnum):
    """What proposes the tokens."""

    NGRAM = "ngram"
    """Suffix matching over the session's own tokens."""
    STANDALONE = "standalone"
    """A small language model."""
    EAGLE = "eagle"
    """A head of one layer on the target's last hidden states (arXiv 2401.15077)."""
    EAGLE3 = "eagle3"
    """A head of one layer on hidden states of several layers (arXiv 2503.01840)."""
    MULTI_LAYER_EAGLE = "multi_layer_eagle"
    """A layer of its own for every step: multi-token prediction (arXiv 2412.19437)."""

    @property
    def needs_model(self) -> bool:
        """True if it drafts with a model of its own."""
        return self is not DrafterKind.NGRAM

    @property
    def is_head(self) -> bool:
        """True if it reads the target's hidden states."""
        return self in (DrafterKind.EAGLE, DrafterKind.EAGLE3, DrafterKind.MULTI_LAYER_EAGLE)


class Miss(StrEnum):
    """Why the bonus of a commit was not a node of the speculation."""

    WRONG = "wrong"
    """There were nodes in its place, and none of them was the bonus."""
    LATE = "late"
    """There was no node in its place, and the drafter had not said that it rests: growing, or the wire, took too long."""
    NONE = "none"
    """There was no node in its place, and the drafter rested: it had nothing more to propose there."""


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """The end-of-sequence token, a stop token id or a stop string."""
    LENGTH = "length"
    """max_tokens, or the target's context, is full."""


@dataclass(frozen=True)
class Stopping:
    """When the verifier ends a session of its own accord."""

    max_tokens: int | None = None
    """Generated tokens at most; None: as many as the target's context and the verifier's KV pool hold."""
    stop_token_ids: tuple[int, ...] = ()
    """End after any of these; the token itself is not part of the output."""
    ignore_eos: bool = False
    """True keeps going after the model's own end-of-sequence tokens."""

    def __post_init__(self) -> None:
        _require(
            self.max_tokens is None or self.max_tokens >= 1, "max_tokens", f"is {self.max_tokens}, expected at least 1"
        )


MAX_LOGPROBS: Final = 20
"""Likeliest tokens that a request may see beside each of its own."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the target found a token: a log-probability of its own logits, before temperature, bias, penalties and filters."""

    token: int
    logprob: float
    """-inf for a token that the model rules out."""
    top: tuple[TokenLogprob, ...] = ()
    """The likeliest tokens in its place, best first; as many as were asked for."""
    text: str = ""
    """For people to read; empty where no tokenizer is at hand."""


def check_logprobs(asked: int | None) -> None:
    """Raise InvalidRequest unless `asked` is a number of likeliest tokens that a request may see, or None."""
    _require(
        asked is None or 0 <= asked <= MAX_LOGPROBS, "logprobs", f"is {asked}, expected 0..{MAX_LOGPROBS} or nothing"
    )


@dataclass(frozen=True)
class Usage:
    """Tokens in and out of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0
    """Tokens of the prompt whose KV the verifier had already."""


@dataclass(frozen=True)
class SpeculationStatistics:
    """What speculation did for one session, summed over its steps (prefill not counted)."""

    steps: int = 0
    """Forward passes of the target that this session had rows in."""
    drafted: int = 0
    """Nodes verified, roots not counted."""
    accepted: int = 0
    """Nodes accepted (the sum of num_correct_drafts)."""
    hits: int = 0
    """Commits whose bonus was a node of the speculation, so that its subtree survived."""
    misses: int = 0
    """Commits whose bonus was not."""

    @classmethod
    def sum(cls, parts: Sequence[SpeculationStatistics]) -> SpeculationStatistics:
        """Over several sessions."""
        return cls(*(sum(vars(part)[name] for part in parts) for name in vars(cls())))

    @property
    def accept_length(self) -> float:
        """Committed tokens per step, bonus included; 0 before the first step."""
        return (self.accepted + self.steps) / self.steps if self.steps else 0.0


@dataclass(frozen=True)
class Endpoint:
    """A drafter or verifier one can dial."""

    member_id: str
    address: str
    features: FeatureNeed = field(default_factory=FeatureNeed)
    """What a drafter needs of the target's hidden states."""


@dataclass(frozen=True)
class DrafterInfo:
    """What a drafter says of itself."""

    kind: DrafterKind
    model: str
    """Name of its model folder; empty for ngram."""
    vocabulary: Vocabulary | None
    """None if it drafts in any vocabulary."""
    max_context: int
    """Longest sequence it can draft for, in tokens."""
    features: FeatureNeed = field(default_factory=FeatureNeed)
    """What it needs of the target's hidden states."""

    def require_fit(self, target: Vocabulary) -> None:
        """Raise Incompatible, naming both sides, if it cannot draft for `target`."""
        if self.vocabulary is not None and not self.vocabulary.fits(target):
            raise Incompatible(
                f"vocabulary mismatch: drafter {self.model or self.kind.value} has {self.vocabulary}; the verifier's target has {target}"
            )


@dataclass(frozen=True)
class ModelInfo:
    """What a verifier says of its target."""

    model: str
    vocabulary: Vocabulary
    max_context: int
    """Prompt and output together, in tokens."""
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Load:
    """How busy a member is."""

    sessions: int = 0
    """Open sessions, waiting ones included."""
    waiting: int = 0
    """Sessions admitted that do not fit yet."""
    free_pages: int = 0
    total_pages: int = 0
    steps: int = 0
    """Steps (verifier) or expansions (drafter) since start."""
    step_ms: float = 0.0
    """Exponentially weighted mean duration of one."""
