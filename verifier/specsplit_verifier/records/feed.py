"""The features of one session on their way to its drafter: what is kept, what was sent, what was read, what has to be computed again.

    0 ......... read ......... sent ......... end
                     kept.first ............. end        a replay: the drafter gets everything from what is kept
    0 .. read .. sent ......... kept.first .. end        a gap: positions sent..kept.first are gone and have to be computed again

The drafter gets every position once, in order, from 0. It is never sent more than the window beyond what it has read, and no more
than the retention is kept: the oldest are dropped. A drafter that comes late has to be sent what was there before it; what is
dropped until then is computed again, and so is what prefill computes faster than it reads. Once it has read all that lay before the
root when it came, and was sent the rest, it is live, and has to keep up: if it reads so slowly that positions are dropped unsent,
it is given up (Overrun). One that was told to rest need not read, and is live again once it has what it missed meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from specsplit.errors import InvalidRequest, SpecsplitError
from specsplit.features import FeatureLayout, FeatureNeed, Features, Payload, Raw
from specsplit.wire.limits import MAX_FEATURE_TOKENS


class Overrun(SpecsplitError):
    """A drafter reads features so slowly that some would be dropped before they were sent."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How features are made of hidden states. Equal recipes make equal bytes."""

    layers: tuple[int, ...]
    """Side by side, in this order."""
    projection: str
    """Digest of the projection applied to them; empty: none."""
    layout: FeatureLayout

    def __hash__(self) -> int:
        return hash((self.layers, self.projection))  # enough to tell them apart, and asked for in every step


@dataclass(frozen=True, slots=True)
class FeedLimits:
    """How much one session's features may take, in tokens, and one event of them, in bytes."""

    window: int
    retention: int
    event_bytes: int

    def event_tokens(self, layout: FeatureLayout) -> int:
        """Tokens of one event; at least one, and no more than a peer accepts."""
        return min(max(1, self.event_bytes // layout.bytes_per_token), MAX_FEATURE_TOKENS)


_Part: TypeAlias = tuple[Raw, int, int]
"""Tokens start <= i < stop of a piece."""


class Rows:
    """Encoded features of positions first <= p < end, which grow at the end and are dropped from the front.

    They stay the pieces that they came in. The oldest is held whole until its last position is dropped.
    """

    def __init__(self, layout: FeatureLayout, first: int) -> None:
        self.first = self.end = first
        self._token_bytes = layout.data_bytes
        self._scale_bytes = layout.bytes_per_token - layout.data_bytes
        self._pieces: deque[Features] = deque()

    def __len__(self) -> int:
        return self.end - self.first

    def append(self, features: Features) -> None:
        """Add what follows the last position. The bytes of the piece before it are made, if they are not yet: its step is long over."""
        if self._pieces:
            self._pieces[-1].make_bytes()
        self._pieces.append(features)
        self.end = features.end

    def drop(self, count: int) -> None:
        """Forget the first `count` positions."""
        self.first += count
        while self._pieces and self._pieces[0].end <= self.first:
            self._pieces.popleft()

    def cut(self, first: int, end: int) -> Features:
        """Positions first <= p < end, at least one: a piece itself if these are all of it, else bytes that are copied when asked for."""
        pieces: deque[Features] = deque()
        for piece in reversed(self._pieces):
            if piece.first < end:
                pieces.appendleft(piece)
            if piece.first <= first:
                break
        if len(pieces) == 1 and (pieces[0].first, pieces[0].end) == (first, end):
            return pieces[0]
        parts = [(piece, max(first, piece.first) - piece.first, min(end, piece.end) - piece.first) for piece in pieces]
        data = [(piece.data, start, stop) for piece, start, stop in parts]
        scales = [(piece.scales, start, stop) for piece, start, stop in parts]
        return Features(first, end - first, _joined(data, self._token_bytes), _joined(scales, self._scale_bytes))


def _joined(parts: Sequence[_Part], size: int) -> Raw:
    """Tokens of `size` bytes, end to end."""
    length = size * sum(stop - start for _, start, stop in parts)
    return Payload(length, partial(_join, parts, size)) if size else b""


def _join(parts: Sequence[_Part], size: int) -> bytes:
    return b"".join(memoryview(bytes(raw))[start * size : stop * size] for raw, start, stop in parts)


class Feed:
    """One session's features under one recipe. `first`: the position that is computed next."""

    def __init__(self, recipe: Recipe, first: int, limits: FeedLimits) -> None:
        self.recipe = recipe
        self._limits = limits
        self._event_tokens = limits.event_tokens(recipe.layout)
        self._kept = Rows(recipe.layout, first)
        self._backlog = 0
        self.attached = False
        """True while there is a drafter to send to."""
        self.live = False
        """True once it had caught up and was sent all there was."""
        self.resting = False
        """True while the drafter was told to rest."""
        self.early_commits = 0
        """Commits made before the features of the prompt: 1 if the step that read the last of it decoded too."""
        self.sent = 0
        """The present drafter was sent every position below this."""
        self.read = 0
        """The present drafter has read every position below this."""

    @property
    def end(self) -> int:
        """The position behind the last that was computed."""
        return self._kept.end

    @property
    def retained(self) -> int:
        """Tokens whose features are kept."""
        return len(self._kept)

    def kept(self, first: int, end: int) -> Features | None:
        """Positions first <= p < end, at least one; None if not all of them are kept."""
        return self._kept.cut(first, end) if self._kept.first <= first and end <= self._kept.end else None

    @property
    def complete(self) -> bool:
        """True if the drafter was sent all that was computed."""
        return self.sent == self.end

    @property
    def catching_up(self) -> bool:
        """True while the drafter has not read all that lay before the root when it came (the prompt, say)."""
        return self.read < self._backlog

    @property
    def gap(self) -> bool:
        """True while the drafter's next position is gone."""
        return self.attached and self.sent < self._kept.first

    @property
    def recompute(self) -> range:
        """Positions to compute again: gone, and the drafter's next. Those that it could be sent at once, and no more."""
        if not self.attached or self.resting:
            return range(0)
        return range(self.sent, max(self.sent, min(self._kept.first, self.read + self._limits.window)))

    def attach(self, root: int) -> list[Features]:
        """A drafter begins at a session whose root has position `root`: what it is to be sent now."""
        self.attached = True
        self.sent = self.read = self.early_commits = 0
        self.live = self.resting = False
        self._backlog = root
        return self._take()

    def rest(self, *, resting: bool) -> None:
        """The drafter was told to rest, or to go on; either way it need not have kept up so far."""
        self.resting, self.live = resting, False

    def detach(self) -> None:
        """The drafter is gone; what is kept waits for another."""
        self.attached = False

    def add(self, features: Features) -> list[Features]:
        """Features were computed, for the first time or again: what the drafter is to be sent now.

        What was computed again goes out at once and is not kept. Raises Overrun if a live drafter lost positions that it was not sent.
        """
        if features.first == self.end:
            self._keep(features)
            return self._take()
        if features.first not in self.recompute or features.end > self._kept.first:
            return []  # whoever lacked them is gone
        again = Rows(self.recipe.layout, features.first)
        again.append(features)
        return self._send(again, features.end) + self._take()

    def acknowledge(self, position: int) -> list[Features]:
        """The drafter has read every position below `position`: what it is to be sent now.

        Raises InvalidRequest if it cannot have.
        """
        if not self.read <= position <= self.sent:
            raise InvalidRequest("features_read.position", f"is {position}, expected {self.read}..{self.sent}")
        self.read = position
        return self._take()

    def _keep(self, features: Features) -> None:
        self._kept.append(features)
        surplus = len(self._kept) - self._limits.retention
        if surplus > 0:
            self._kept.drop(surplus)
        if self.attached and self.live and self.sent < self._kept.first:
            raise Overrun(
                f"it has read the features of {self.read} tokens of {self.end}, and more than {self._limits.retention} are not kept"
            )

    def _take(self) -> list[Features]:
        if not self.attached or self.sent < self._kept.first:
            return []
        events = self._send(self._kept, min(self.end, self.read + self._limits.window))
        self.live |= self.complete and not self.catching_up and not self.resting
        return events

    def _send(self, rows: Rows, end: int) -> list[Features]:
        step = self._event_tokens
        events = [rows.cut(first, min(first + step, end)) for first in range(self.sent, end, step)]
        self.sent = max(self.sent, end)
        return events


def _nothing(session: int, recipe: Recipe, end: int) -> Sequence[Features]:
    return ()


@dataclass(frozen=True, slots=True)
class FeatureSource:
    """What a verifier can feed its drafters, and how much of it."""

    recipe: Callable[[FeatureNeed], Recipe]
    """How a need is met. Raises Incompatible, saying why, where it cannot be."""
    limits: FeedLimits
    stored: Callable[[int, Recipe, int], Sequence[Features]] = _nothing
    """Features of a session (its number) before a position that were computed for others, without a gap."""

    def feed(self, session: int, recipe: Recipe, kept: Feed | None, first: int) -> Feed:
        """The feed of a drafter: `kept`, if that is of the same recipe, else a new one of what is stored before `first`."""
        if kept is not None and kept.recipe == recipe:
            return kept
        stored = self.stored(session, recipe, first)
        feed = Feed(recipe, stored[0].first if stored else first, self.limits)
        for features in stored:
            feed.add(features)
        return feed
