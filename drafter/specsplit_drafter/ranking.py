"""From logits to candidate children, by the rules that the target picks by: the same for every kind with a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from specsplit.errors import SpecsplitError
from specsplit.sampling import NoiseCache, SamplingBatch, has_pick, perturb
from specsplit.values import Sampling
from specsplit_drafter.drafted_text import DraftedText
from specsplit_drafter.proposer import Advance, Children, FrontierNode, SessionKey

NOISE_BYTES: Final = 64 * 2**20
"""Rows of noise kept: nodes of one depth share theirs, from one expansion to the next."""


class Ranking:
    """Ranks the next tokens of nodes, each under the sampling of its session."""

    def __init__(self, children: int, vocab_size: int, device: torch.device) -> None:
        """children: candidates of one node; as many as the vocabulary has, if it has fewer."""
        self._children = min(children, vocab_size)
        self._vocab_size = vocab_size
        self._device = device
        self._noise = NoiseCache(NOISE_BYTES)
        self._samplings: dict[SessionKey, Sampling] = {}
        self._texts: dict[SessionKey, DraftedText] = {}
        """Of sessions with penalties."""
        self._batch: tuple[SamplingBatch, dict[SessionKey, int]] | None = None
        """Of all sessions, and the place of each; None: sessions have come or gone."""

    def open(self, session: SessionKey, tokens: Sequence[int], sampling: Sampling, prompt_tokens: int = 0) -> None:
        """A session begins on committed tokens; so many of them, from the front, were not generated (0: all of them)."""
        self._batch = None
        self._samplings[session] = sampling
        if sampling.penalised:
            self._texts[session] = DraftedText(tokens, prompt_tokens or len(tokens))

    def commit(self, session: SessionKey, advance: Advance) -> None:
        """Follow a commit."""
        if session in self._texts:
            self._texts[session].commit(advance)

    def close(self, session: SessionKey) -> None:
        """Forget a session."""
        self._batch = None
        del self._samplings[session]
        self._texts.pop(session, None)

    @torch.inference_mode()
    def rank(self, logits: Tensor, nodes: Sequence[FrontierNode]) -> list[Children | SpecsplitError]:
        """Logits [n, V] behind nodes -> their likeliest children; an error for a node whose logits are no numbers.

        A node with penalties is ranked after its parent, in an earlier call if it is no root.
        """
        batch, places = self._batch or self._batched()
        rows = batch.rows([places[node.session] for node in nodes])
        paths = [self._texts[node.session].path(node) if node.session in self._texts else () for node in nodes]
        perturbed = perturb(logits.float(), rows, [node.position + 1 for node in nodes], paths, self._noise)
        values, tokens = perturbed.topk(self._children, dim=-1)
        log_probabilities = values.double() - perturbed.logsumexp(dim=-1, keepdim=True).double()
        columns = zip(
            has_pick(values[:, 0]).tolist(),
            nodes,
            tokens.cpu().numpy(),
            log_probabilities.cpu().numpy(),
            strict=True,
        )
        return [Children(of_node, raw) if fit else _no_numbers(node.position) for fit, node, of_node, raw in columns]

    def _batched(self) -> tuple[SamplingBatch, dict[SessionKey, int]]:
        counts = [self._texts[session].counts if session in self._texts else None for session in self._samplings]
        batch = SamplingBatch(list(self._samplings.values()), self._vocab_size, self._device, counts)
        self._batch = batch, {session: place for place, session in enumerate(self._samplings)}
        return self._batch


def _no_numbers(position: int) -> SpecsplitError:
    return SpecsplitError(
        f"the drafter's logits behind position {position} are NaN or infinite: it cannot draft for this text"
    )
