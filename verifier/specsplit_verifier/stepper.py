"""One step of the target: rows in, verdicts out. The only part of the verifier that touches tensors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from specsplit.errors import SpecsplitError
from specsplit.features import Features
from specsplit.model.batch import Row
from specsplit.model.capture import Hidden
from specsplit.model.causal_lm import CausalLM
from specsplit.model.paced import Paced
from specsplit.sampling import NoiseCache, pick
from specsplit.speculation import Draft
from specsplit.values import Sampling
from specsplit_verifier.extraction import Extractor, Wanted
from specsplit_verifier.scheduler import Batch
from specsplit_verifier.session import Session, Verdict

NOISE_BYTES = 64 * 2**20  # rows of noise kept: the next step asks again for most positions of this one


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step that is ready to run."""

    batch: Batch
    drafts: list[Draft]
    rows: list[Row]
    """Drafts, then chunks."""
    chunks: list[tuple[Session, range]]
    """(session, positions) of every stretch of committed tokens: what is run once more, then of prompts."""
    layers: frozenset[int]
    """Whose hidden states are wanted."""
    tokens: int
    """In all rows."""
    samplings: list[Sampling]
    """Of every draft token, drafts end to end; and so are the next."""
    positions: list[int]
    """Of the tokens that will be picked behind them."""


@dataclass(frozen=True, slots=True)
class Forward:
    """What one forward gave, and what it cost."""

    logits: Tensor
    """[n, V] behind every draft token, drafts end to end."""
    hidden: Hidden
    """Of every token, rows end to end, by layer."""
    started: float
    """Seconds, time.monotonic."""
    seconds: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step made of its sessions, and what the forward cost."""

    verdicts: list[tuple[Session, Draft, Verdict]]
    failed: list[tuple[Session, Draft, SpecsplitError]]
    """Sessions that got not even a bonus, and why. They have no verdict, and are where they were before the step."""
    forward_started: float
    """Seconds, time.monotonic."""
    forward_s: float
    tokens: int
    """In all rows."""
    prompts: list[tuple[Session, range]]
    """(session, positions) of every stretch of a prompt that was read."""
    reprefill_tokens: int
    features: list[tuple[Session, Features]]
    """Of tokens whose KV is held from now on, for sessions that go on and have a feed."""


class Stepper:
    """The target and its KV. `run` belongs to the model thread, everything else to the engine's."""

    def __init__(self, target: CausalLM, paced: Paced, extractor: Extractor | None = None) -> None:
        self.target = target
        self.extractor = Extractor(target) if extractor is None else extractor
        self._paced = paced
        self._noise = NoiseCache(NOISE_BYTES)

    def prepare(self, batch: Batch) -> Prepared:
        """Take the drafts and lay out the rows."""
        drafts = [session.take() for session in batch.decoding]
        pairs = list(zip(batch.decoding, drafts, strict=True))
        rows = [_tree_row(session, draft) for session, draft in pairs]
        prompts = [(session, range(session.kv_length, session.kv_length + size)) for session, size in batch.prefilling]
        chunks = batch.reprefilling + prompts
        rows += [_chunk_row(session, positions) for session, positions in chunks]
        feeds = [session.feed for session in [*batch.decoding, *(session for session, _ in chunks)]]
        return Prepared(
            batch,
            drafts,
            rows,
            chunks,
            frozenset(layer for feed in feeds if feed is not None for layer in feed.recipe.layers),
            sum(row.num_tokens for row in rows),
            [session.request.sampling for session, draft in pairs for _ in draft.tokens],
            [position + 1 for draft in drafts for position in draft.positions],
        )

    def run(self, prepared: Prepared) -> Forward:
        """The forward. Touches no session."""
        started = time.monotonic()
        with self._paced.step(prepared.tokens):
            logits, hidden = self.target.forward_capturing(prepared.rows, prepared.layers)
            if logits.is_cuda:
                torch.cuda.synchronize(logits.device)
        return Forward(logits, hidden, started, time.monotonic() - started)

    def foresee(self, prepared: Prepared) -> None:
        """Make the noise that picking will need; for the time in which the forward runs."""
        wanted = {
            (sampling.seed, position): None
            for sampling, position in zip(prepared.samplings, prepared.positions, strict=True)
            if not sampling.greedy
        }
        if wanted:
            seeds, positions = zip(*wanted, strict=True)
            self._noise.warm(seeds, positions, self.target.info.vocabulary.size, self.target.kv.data.device)

    def conclude(self, prepared: Prepared, forward: Forward) -> StepResult:
        """Pick, commit or finish every session, compact the KV of what was accepted, and take out the features."""
        for session, size in prepared.batch.prefilling:
            session.kv_length += size
        picks = pick(forward.logits, prepared.samplings, prepared.positions, self._noise) if prepared.drafts else []
        verdicts, failed = self._verify(prepared.batch.decoding, prepared.drafts, picks)
        features = self.extractor.extract(_wanted(prepared, verdicts), forward.hidden)
        again = prepared.batch.reprefilling
        return StepResult(
            verdicts,
            failed,
            forward.started,
            forward.seconds,
            prepared.tokens,
            prepared.chunks[len(again) :],
            sum(len(positions) for _, positions in again),
            features,
        )

    def _verify(
        self, sessions: list[Session], drafts: list[Draft], picks: list[int | None]
    ) -> tuple[list[tuple[Session, Draft, Verdict]], list[tuple[Session, Draft, SpecsplitError]]]:
        verdicts: list[tuple[Session, Draft, Verdict]] = []
        failed: list[tuple[Session, Draft, SpecsplitError]] = []
        moves: list[tuple[np.ndarray, np.ndarray]] = []
        start = 0
        for session, draft in zip(sessions, drafts, strict=True):
            own = picks[start : start + len(draft.tokens)]
            start += len(draft.tokens)
            path = draft.accept(own)
            root, bonus = session.kv_length, own[path[-1]]
            if bonus is None:
                failed.append((session, draft, _no_pick(draft.positions[0] + 1)))
                continue
            verdict = session.settle(draft, path, bonus)
            if verdict.finished is None and path[-1] != len(path) - 1:
                slots = session.table.slots(root, root + len(draft.tokens))
                moves.append((slots[path], slots[: len(path)]))
            verdicts.append((session, draft, verdict))
        if moves:
            self.target.move(np.concatenate([m[0] for m in moves]), np.concatenate([m[1] for m in moves]))
        return verdicts, failed


def _no_pick(position: int) -> SpecsplitError:
    return SpecsplitError(
        f"the target has no token for position {position}: its logits there are NaN or infinite; its weights are broken, or its dtype is "
        "too narrow for this text (dtype float32 is the widest)"
    )


def _tree_row(session: Session, draft: Draft) -> Row:
    slots = session.table.slots(0, session.kv_length + len(draft.tokens))
    return Row.tree(draft.tokens, draft.parents, slots)


def _chunk_row(session: Session, positions: range) -> Row:
    """A stretch of committed tokens, no logits. For one that was run before, the same KV is written to the same slots.

    Same, that is, up to floating-point rounding between batch shapes, as everywhere (docs/design.md, section 5).
    """
    tokens = session.tokens[positions.start : positions.stop]
    return Row.chunk(tokens, session.table.slots(0, positions.stop))


def _wanted(prepared: Prepared, verdicts: list[tuple[Session, Draft, Verdict]]) -> list[Wanted]:
    """Where in the forward features are worth taking: all of every chunk, and accepted paths, root included, of sessions that go on.

    Chunks come first: what a session computes anew may push out what its chunk has just joined up with.
    """
    starts = list(accumulate((row.num_tokens for row in prepared.rows), initial=0))
    decoding = prepared.batch.decoding
    paths = {session.id: verdict.path for session, _, verdict in verdicts if verdict.finished is None}
    ended = {session.id for session in decoding} - paths.keys()
    at = [
        (session, positions.start, range(start, start + len(positions)))
        for (session, positions), start in zip(prepared.chunks, starts[len(decoding) :], strict=False)
    ]
    at += [
        (session, draft.positions[0], [start + index for index in paths.get(session.id, ())])
        for session, draft, start in zip(decoding, prepared.drafts, starts, strict=False)
    ]
    return [
        Wanted(session, session.feed.recipe, first, indices)
        for session, first, indices in at
        if session.feed is not None and session.id not in ended
    ]
