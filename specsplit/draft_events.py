"""What verifier and drafter say to each other about one session, on the Draft stream.

`Commit` and `Grow` stand with the speculation (specsplit/speculation/events.py), which knows nothing of sessions, models and services, and
`Features` with their formats (specsplit/features.py). The unions at the end have all that travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from specsplit.features import FeatureLayout, Features
from specsplit.speculation import Commit, Grow
from specsplit.values import Constraint, Host, Plan, Sampling, Vocabulary


@dataclass(frozen=True)
class Open:
    """A session begins at a drafter. The last token is the root."""

    tokens: Sequence[int]
    """Every committed token from position 0; at least one."""
    sampling: Sampling
    plan: Plan
    vocabulary: Vocabulary
    max_nodes: int
    traceparent: str = ""
    features: FeatureLayout = field(default_factory=FeatureLayout)
    """How the verifier sends features; width 0: it sends none."""
    prompt_tokens: int = 0
    """How many of the tokens, from the front, are the prompt's, and were not generated. 0: all of them."""
    step_us: int = 0
    """Microseconds from one step of the verifier to the next; 0: unknown."""
    scope: bytes = b""
    """Whose session it is: equal for sessions of one client; empty: like no other session."""
    host: Host = field(default_factory=Host)
    """Where the verifier computes."""
    constraint: Constraint | None = None
    """What the output is held to; None: nothing."""
    ends: Sequence[int] = ()
    """The tokens that end the output, where a constraint lets it end."""


@dataclass(frozen=True)
class Close:
    """A session ends at a drafter."""


@dataclass(frozen=True)
class Refuse:
    """The drafter ends a session on its side."""

    code: int
    """A gRPC status code, as a number."""
    message: str


@dataclass(frozen=True)
class FeaturesRead:
    """The drafter has read the features of every position below `position`: the verifier may send as many more."""

    position: int


MAX_GROWS: Final = 48
"""Grows of a session that a drafter makes, at most, of what one open, commit or plan lets it grow."""

ToDrafter: TypeAlias = Open | Commit | Features | Plan | Close
"""What a verifier tells a drafter of a session. A plan: how much to speculate from now on."""
ToVerifier: TypeAlias = Grow | FeaturesRead | Refuse
"""What a drafter tells a verifier of a session."""
