"""What an engine tells a gateway in front of it, and may be told by it: its model, its load, its cache, and an operator's orders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from specsplit.errors import InvalidRequest
from specsplit.membership import Member
from specsplit.values import Load, ModelInfo


@dataclass(frozen=True)
class ModelConfig:
    """What the config of a model folder says that no verifier tells."""

    model_type: str = ""
    """The family, as transformers names it; empty: not told."""
    architectures: tuple[str, ...] = ()
    """Names of its classes in transformers."""
    bos_token_id: int = 0
    """The token with which a text begins; 0 also where there is none."""
    pad_token_id: int = 0
    """The token that fills a row; 0 also where there is none."""


@dataclass(frozen=True)
class EngineLoad:
    """How busy an engine is. What it cannot tell is 0."""

    running: int = 0
    """Requests being decoded; one for n choices counts as n."""
    waiting: int = 0
    """Requests that wait for a place."""
    max_running: int = 0
    """Requests that may be decoded at once."""
    used_tokens: int = 0
    """Tokens whose KV is held for requests."""
    max_tokens: int = 0
    """Tokens whose KV can be held."""

    @property
    def token_usage(self) -> float:
        """Share of the KV memory that is taken, in [0, 1]."""
        return self.used_tokens / self.max_tokens if self.max_tokens else 0.0

    @property
    def utilization(self) -> float:
        """Share of the places that are taken, in [0, 1]."""
        return min(1.0, self.running / self.max_running) if self.max_running else 0.0


def load_of(load: Load, max_sessions: int) -> EngineLoad:
    """The load of one verifier that takes so many sessions at once."""
    return EngineLoad(
        running=load.sessions - load.waiting,
        waiting=load.waiting,
        max_running=max_sessions,
        used_tokens=(load.total_pages - load.free_pages) * load.page_size,
        max_tokens=load.total_pages * load.page_size,
    )


def engine_load(members: Iterable[Member], running: int, waiting: int) -> EngineLoad:
    """The load of a cluster with these members, whose verifiers decode so many requests while others wait."""
    verifiers = [
        load_of(member.load, member.max_sessions)
        for member in members
        if isinstance(member.role, ModelInfo) and not member.draining
    ]
    return EngineLoad(
        running=running,
        waiting=waiting,
        max_running=sum(each.max_running for each in verifiers),
        used_tokens=sum(each.used_tokens for each in verifiers),
        max_tokens=sum(each.max_tokens for each in verifiers),
    )


LONGEST_FLUSH_S: Final = 600.0
"""Time for which a flush waits for sessions, at most."""
MOST_PROFILED: Final = 1_000
"""Steps in one profile, at most: it is held in memory until it is written."""
ACTIVITIES: Final = ("CPU", "GPU")
"""What a profile may have."""


@dataclass(frozen=True)
class FlushCache:
    """Drop what is cached of texts that no session has. Raises InvalidRequest for a time out of range."""

    timeout_s: float = 0.0
    """Wait so long, at most, until no session uses any of it; 0: what is in use stays."""

    def __post_init__(self) -> None:
        if not 0 <= self.timeout_s <= LONGEST_FLUSH_S:
            raise InvalidRequest("timeout_s", f"is {self.timeout_s}, expected 0..{LONGEST_FLUSH_S:g}")


@dataclass(frozen=True)
class StartProfile:
    """Profile what the engine computes from now on. Raises InvalidRequest for a value out of range."""

    activities: tuple[str, ...] = ()
    """Some of `ACTIVITIES`; empty: all that the device has."""
    num_steps: int | None = None
    """It is over after so many steps; None: after `MOST_PROFILED`, if StopProfile does not come before."""
    with_stack: bool = False
    """Whether it has the lines of source."""
    record_shapes: bool = False
    """Whether it has the shapes of inputs."""

    def __post_init__(self) -> None:
        for activity in self.activities:
            if activity not in ACTIVITIES:
                raise InvalidRequest("activities", f"has {activity!r}, expected some of {', '.join(ACTIVITIES)}")
        if self.num_steps is not None and not 1 <= self.num_steps <= MOST_PROFILED:
            raise InvalidRequest("num_steps", f"is {self.num_steps}, expected 1..{MOST_PROFILED:,}")


@dataclass(frozen=True)
class StopProfile:
    """End the profile, and write it."""


LONGEST_DRAIN_S: Final = 3_600.0
"""Time that an update of weights waits for sessions, at most."""
_LONGEST_NAME: Final = 256


@dataclass(frozen=True)
class UpdateWeights:
    """Go on with other weights of the same model. Raises InvalidRequest for a name that is none, or a time out of range."""

    folder: str
    """Name of their folder, in weights_dir of the service."""
    restart: bool = False
    """True: sessions that run are computed again with them, tokens so far included. False: these end with the weights they began with,
    and others wait for that."""
    timeout_s: float = 60.0
    """Unless they restart, wait so long for those that run; then the old weights stay."""

    def __post_init__(self) -> None:
        parts = self.folder.split("/")
        if not self.folder.isprintable() or len(self.folder) > _LONGEST_NAME or not {"", ".", ".."}.isdisjoint(parts):
            problem = f"is {self.folder!r}, expected the name of a folder in weights_dir of the service"
            raise InvalidRequest("update.folder", problem)
        if not 0 <= self.timeout_s <= LONGEST_DRAIN_S:
            raise InvalidRequest("update.timeout_s", f"is {self.timeout_s}, expected 0..{LONGEST_DRAIN_S:g}")


Operation = FlushCache | StartProfile | StopProfile
"""What an operator may ask of an engine."""


@dataclass(frozen=True)
class Outcome:
    """What came of an operation."""

    done: bool
    """False: some of it could not be done."""
    message: str
    """What was done, in a sentence."""


@dataclass(frozen=True)
class Updated:
    """Which weights a service goes on with."""

    version: int
    """1 for those that it began with, and one more with every update."""
    message: str
    """What was done, in a sentence."""


@dataclass(frozen=True)
class MemberUpdated(Updated):
    """What came of it at one member of a cluster. Version 0: it was not done, and `message` says why."""

    member_id: str


@dataclass(frozen=True)
class Block:
    """So many tokens as a page of KV has, behind all tokens before them. Its digest is that of `specsplit.prefix`."""

    digest: bytes
    parent: bytes
    """The digest of the block before it; empty: a text begins with it."""
    tokens: tuple[int, ...]
    adapter: str = ""
    """With which adapter of the target it was computed; empty: none."""


@dataclass(frozen=True)
class BlocksStored:
    """The KV of these blocks is there from now on."""

    blocks: Sequence[Block]


@dataclass(frozen=True)
class BlocksRemoved:
    """The KV of these blocks, by digest, is gone."""

    digests: Sequence[bytes]


BlockChange = BlocksStored | BlocksRemoved


@dataclass(frozen=True)
class BlockBatch:
    """What happened to blocks at once, or a part of all that are there."""

    sequence: int
    """Its number; that of the next batch is one more."""
    timestamp: float
    """Seconds since 1970."""
    changes: Sequence[BlockChange] = ()
    first_event: int = 0
    """The number of the first change, that of the next is one more; 0: none of them has one."""
    part: SnapshotPart | None = None
    """None: these are changes, and not what is there."""


@dataclass(frozen=True)
class SnapshotPart:
    """Which part it is of all blocks that are there."""

    index: int
    parts: int
    blocks: int
    """Blocks in all parts."""
