"""How the choices of a block depend on one another: the logits of a position, given the token that was chosen before it.

n   nodes      V   tokens that the drafter proposes      W   width of a state      r   rank
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from specsplit.model.heads.block_config import BlockConfig, MarkovConfig, SelectorConfig


class MarkovHead(nn.Module):
    """DSpark: a bias for every token by the one before it. Of kind rnn it also depends on those before that, by a memory [n, r]."""

    def __init__(self, vocab_size: int, draft_vocab_size: int, width: int, markov: MarkovConfig) -> None:
        super().__init__()
        rank = markov.rank
        self.kind: Final = markov.kind
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)
        self.gate_proj = nn.Linear(width + rank, rank) if markov.kind == "gated" else None
        self.joint_proj = nn.Linear(2 * rank + width, 3 * rank) if markov.kind == "rnn" else None

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens [n], the target's ids -> [n, r]"""
        return self.markov_w1(tokens)

    def forward(self, tokens: Tensor, hidden: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """tokens [n] before the positions whose hidden states [n, W] these are; memory of the node before, None for the first position
        -> the bias [n, V], and the memory behind it."""
        before = self.embed(tokens)
        if self.joint_proj is not None:
            held = torch.zeros_like(before) if memory is None else memory
            gate, new, out = self.joint_proj(torch.cat([held, before, hidden], dim=-1)).chunk(3, dim=-1)
            share = gate.sigmoid()
            return self.markov_w2(out.tanh()), share * held + (1.0 - share) * new.tanh()
        if self.gate_proj is not None:
            before = self.gate_proj(torch.cat([hidden, before], dim=-1)).sigmoid() * before
        return self.markov_w2(before), None


class ConfidenceHead(nn.Module):
    """DSpark: the probability that the token of a position is accepted, given that those before it are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, read: Tensor) -> Tensor:
        """[n, W or W + r] -> log-probabilities [n]"""
        return logsigmoid(self.proj(read).squeeze(-1).float())


class CandidateSelector(nn.Module):
    """DFlash 2: the likeliest tokens of a position, and no others, scored anew by the token before."""

    def __init__(self, vocab_size: int, width: int, selector: SelectorConfig) -> None:
        super().__init__()
        self.top_k: Final = min(selector.top_k, vocab_size)
        self.predecessor_codebook = nn.Parameter(torch.randn(vocab_size, selector.rank))
        self.successor_codebook = nn.Parameter(torch.randn(vocab_size, selector.rank))
        self.hidden_projection = nn.Linear(width, selector.rank, bias=False)

    def scores(self, tokens: Tensor, hidden: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [n] before the positions with these hidden states [n, W] and logits [n, V] -> candidates [n, k] and their scores."""
        best = logits.topk(self.top_k, dim=-1)
        context = self.predecessor_codebook[tokens] * self.hidden_projection(hidden)
        return best.indices, best.values + (self.successor_codebook[best.indices] * context.unsqueeze(-2)).sum(-1)

    def forward(self, tokens: Tensor, hidden: Tensor, logits: Tensor) -> Tensor:
        """The scores as logits [n, V], -inf where there is no candidate."""
        candidates, scores = self.scores(tokens, hidden, logits)
        return torch.full_like(logits, -torch.inf).scatter(-1, candidates, scores.to(logits.dtype))


class BlockChoice(nn.Module):
    """What makes the choices of a block depend on one another, and says how sure they are; for DFlash nothing does."""

    def __init__(self, said: BlockConfig, vocab_size: int, draft_vocab_size: int, width: int) -> None:
        """vocab_size: of the target."""
        super().__init__()
        rank = said.markov.rank if said.markov is not None and said.confidence_with_markov else 0
        self.markov_head = None if said.markov is None else MarkovHead(vocab_size, draft_vocab_size, width, said.markov)
        self.candidate_selector = None if said.selector is None else CandidateSelector(vocab_size, width, said.selector)
        self.confidence_head = ConfidenceHead(width + rank) if said.confidence else None
        self._reads_markov: Final = rank > 0

    @property
    def conditions(self) -> bool:
        """Whether the token before a position changes its logits."""
        return self.markov_head is not None or self.candidate_selector is not None

    def conditioned(
        self, logits: Tensor, hidden: Tensor, tokens: Tensor, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [n, V] and hidden states [n, W] of positions, given the tokens [n] before them (the target's ids), and what was
        remembered of those before these -> logits [n, V], and what is remembered, if anything is."""
        if self.markov_head is not None:
            bias, memory = self.markov_head(tokens, hidden, memory)
            return logits + bias, memory
        if self.candidate_selector is not None:
            return self.candidate_selector(tokens, hidden, logits), None
        return logits, None

    def confidence(self, hidden: Tensor, tokens: Tensor) -> Tensor | None:
        """Log-probabilities [n] that the tokens of positions with these hidden states [n, W] are accepted, given the tokens before
        them; None: nothing says so."""
        if self.confidence_head is None:
            return None
        if self._reads_markov and self.markov_head is not None:
            hidden = torch.cat([hidden, self.markov_head.embed(tokens)], dim=-1)
        return self.confidence_head(hidden)
