"""What verifiers and drafters say of themselves, and whether they fit each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from specsplit.errors import Incompatible, InvalidRequest
from specsplit.features import FeatureNeed


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
    DFLASH = "dflash"
    """A block of tokens in one forward, on hidden states of several layers; with DFlash 2's choice among candidates where it has one."""
    DSPARK = "dspark"
    """DFlash whose choices depend on the token before, and which says how sure it is of each."""

    @property
    def needs_model(self) -> bool:
        """True if it drafts with a model of its own."""
        return self is not DrafterKind.NGRAM

    @property
    def is_head(self) -> bool:
        """True if it reads the target's hidden states."""
        return self.needs_model and self is not DrafterKind.STANDALONE

    @property
    def drafts_blocks(self) -> bool:
        """True if one forward drafts several tokens."""
        return self in (DrafterKind.DFLASH, DrafterKind.DSPARK)


@dataclass(frozen=True)
class Endpoint:
    """A drafter or verifier one can dial."""

    member_id: str
    address: str
    features: FeatureNeed = field(default_factory=FeatureNeed)
    """What a drafter needs of the target's hidden states."""
    weights_version: int = 0
    """Which weights of its model a drafter has taken since it started, from 2 on; 0: none, or it does not tell."""


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
class Adapter:
    """Weights of low rank (LoRA, arXiv 2106.09685) that a verifier adds to its target for the sessions that ask for them."""

    name: str
    """That of its folder."""
    digest: str
    """Hex SHA-256 of its files: adapters of one name with different digests are different ones."""
    rank: int = field(default=0, compare=False)
    """The highest of its matrices; 0: a verifier of an older build, which does not tell."""

    @property
    def salt(self) -> bytes:
        """What its KV depends on beside the tokens, for `specsplit.prefix`: no page of it is another adapter's, or the target's own."""
        return self.digest.encode()


@dataclass(frozen=True)
class ModelInfo:
    """What a verifier says of its target."""

    model: str
    vocabulary: Vocabulary
    max_context: int
    """Prompt and output together, in tokens."""
    eos_token_ids: tuple[int, ...] = ()
    takes_chat: bool | None = None
    """Whether conversations may be sent, which a coordinator knows. None: a verifier tells, or a coordinator of an older build."""
    looks_up: bool = False
    """Whether a verifier drafts by lookup for sessions that no drafter serves, as a drafter of kind ngram would."""
    adapters: tuple[Adapter, ...] = ()
    """What requests may ask for beside the target as it is; each has another name."""

    def adapter(self, name: str) -> Adapter | None:
        """The adapter of that name; None if it is empty. Raises InvalidRequest, naming those that are there, if there is none."""
        if not name:
            return None
        if name not in self._by_name:
            raise InvalidRequest("adapter", f"is {name}, {self._known_adapters}")
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> Mapping[str, Adapter]:
        return {adapter.name: adapter for adapter in self.adapters}

    @property
    def _known_adapters(self) -> str:
        if not self.adapters:
            return f"and {self.model} has none; leave it out"
        return (
            f"expected one of {', '.join(adapter.name for adapter in self.adapters)}, or none for {self.model} as it is"
        )


def pages_held(num_tokens: int, in_step: int, page_size: int, window: int = 0) -> int:
    """KV pages that a session holds at most while its text grows to so many tokens, the drafted ones of its last step included.

    `in_step`: tokens that it grows by in one step at most. `window`: tokens that a token sees at most; 0: all before it.
    """
    whole = -(-num_tokens // page_size)
    if not window:
        return whole
    return min(whole, 1 - (-(window + max(in_step, page_size)) // page_size))  # neither end need be that of a page


@dataclass(frozen=True)
class AdapterLoad:
    """How many sessions are decoded with an adapter."""

    name: str
    sessions: int
    """Open ones, waiting ones included."""


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
    page_size: int = 0
    """Tokens of one KV page; 0: it keeps no KV."""
    kv_window: int = 0
    """Tokens of a text, counted from its end, whose KV a session holds; 0: all."""
    layer_window: int = 0
    """Where only some layers see a window: the tokens of the widest; else 0."""
    window_pages: int = 0
    """Pages of these layers in all; 0: they have as many as the others."""
    free_window_pages: int = 0
    adapters: tuple[AdapterLoad, ...] = ()
    """Of those adapters that any session is decoded with, by name."""
