"""Ranking of candidate children by their logits, under the rules by which the target picks. Every kind with a model ranks so."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np
import torch
from torch import Tensor

from specsplit.errors import SpecsplitError
from specsplit.model.tensors.transfer import on_device
from specsplit.sampling import NoiseCache, SamplingBatch, TokenCounts, held, perturb, prepare_noise
from specsplit.values import Sampling
from specsplit_drafter.descent.device_ranking import DeviceRanking, Ranked
from specsplit_drafter.drafts.grammars import Masks
from specsplit_drafter.drafts.proposer import SessionKey

NOISE_BYTES: Final = 64 * 2**20
"""Bytes of noise that are kept: nodes of one depth share theirs, from one expansion to the next."""


class Ranking:
    """Ranks the next tokens of nodes, each under the sampling of its session."""

    def __init__(self, children: int, vocab_size: int, device: torch.device) -> None:
        """children: candidates of one node; as many as the vocabulary has, if it has fewer."""
        self.children: Final = min(children, vocab_size)
        self._vocab_size = vocab_size
        self._device = device
        prepare_noise(device)
        self._noise = NoiseCache(NOISE_BYTES)
        self._samplings: dict[SessionKey, Sampling] = {}
        self._counts: dict[SessionKey, TokenCounts] = {}
        """Counts of the committed tokens of penalised sessions."""
        self._batch: tuple[SamplingBatch, dict[SessionKey, int]] | None = None
        """The batch of all sessions, and the place of each; None: sessions have come or gone since it was made."""

    def open(self, session: SessionKey, tokens: Sequence[int], sampling: Sampling, prompt_tokens: int = 0) -> None:
        """Begin a session on committed tokens, of which `prompt_tokens`, from the front, are the prompt's (0: all of them)."""
        self._batch = None
        self._samplings[session] = sampling
        if sampling.penalised:
            self._counts[session] = TokenCounts(prompt_tokens or len(tokens))
            self._counts[session].add(tokens)

    def penalises(self, session: SessionKey) -> bool:
        """Tell whether penalties make the ranking behind a node depend on the path to it."""
        return session in self._counts

    def needs_host(self, session: SessionKey) -> bool:
        """Tell whether ranking needs numbers from the device on the host: penalties count tokens of paths, and top_p sums probabilities."""
        sampling = self._samplings[session]
        return sampling.penalised or (not sampling.greedy and sampling.top_p < 1)

    def commit(self, session: SessionKey, tokens: Sequence[int]) -> None:
        """Count committed tokens."""
        if session in self._counts:
            self._counts[session].add(tokens)

    def close(self, session: SessionKey) -> None:
        """Forget a session."""
        self._batch = None
        del self._samplings[session]
        self._counts.pop(session, None)

    @torch.inference_mode()
    def rank(
        self,
        logits: Tensor,
        sessions: Sequence[SessionKey],
        positions: Sequence[int],
        paths: Sequence[Sequence[int]],
        masks: Masks | None = None,
    ) -> Ranked:
        """Rank logits [n, V] behind nodes at `positions`.

        paths: the tokens from below the root to each node; of a session that is not penalised they may be left empty.
        masks: of the rows in which not everything may be drafted; None: there are none.
        """
        barred = masks is not None
        if masks is not None:
            logits = held(logits.float(), on_device(masks.rows, self._device), on_device(masks.words, self._device))
        if all(self._samplings[session].plain for session in set(sessions)):
            return Ranked.of(logits.float(), self.children, barred=barred)
        batch, places = self._batch or self._batched()
        rows = batch.rows([places[session] for session in sessions])
        perturbed = perturb(logits.float(), rows, [position + 1 for position in positions], paths, self._noise)
        return Ranked.of(perturbed, self.children, barred=barred)

    def on_device(self, sessions: Sequence[SessionKey], width: int, spans: Sequence[range]) -> DeviceRanking:
        """Prepare the ranking of `width` nodes of each of these sessions, none of which `needs_host`, at any positions in `spans` [B]."""
        samplings = [self._samplings[session] for session in sessions]
        rows = SamplingBatch(samplings, self._vocab_size, self._device).rows(
            np.arange(len(sessions)).repeat(width).tolist()
        )
        needed = [(sampling.seed, span) for sampling, span in zip(samplings, spans, strict=True) if not sampling.greedy]
        seeds = [seed for seed, span in needed for _ in span]
        noise = self._noise(
            seeds, [position + 1 for _, span in needed for position in span], self._vocab_size, self._device
        )
        places = np.array(_places(samplings, spans)).repeat(width).take(rows.of_sampled(range(len(sessions) * width)))
        return DeviceRanking(rows, noise, on_device(places, self._device), self.children)

    def _batched(self) -> tuple[SamplingBatch, dict[SessionKey, int]]:
        counts = [self._counts.get(session) for session in self._samplings]
        batch = SamplingBatch(list(self._samplings.values()), self._vocab_size, self._device, counts)
        self._batch = batch, {session: place for place, session in enumerate(self._samplings)}
        return self._batch


def _places(samplings: Sequence[Sampling], spans: Sequence[range]) -> list[int]:
    """Compute for each session the number that, added to a position in its span, gives the position's place among those of all sessions."""
    sizes = [0 if sampling.greedy else len(span) for sampling, span in zip(samplings, spans, strict=True)]
    return [
        start - span.start for start, span in zip(accumulate(sizes, initial=0), spans, strict=False)
    ]  # the last is behind them all


def not_finite(position: int) -> SpecsplitError:
    """Make the error of a session whose logits behind `position` are not finite."""
    return SpecsplitError(
        f"the drafter's logits behind position {position} are NaN or infinite: it cannot draft for this text"
    )
