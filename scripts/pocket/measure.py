"""Held-out figures of the pocket pair: how well each predicts, and how often the draft guesses what the target picks."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from scripts.pocket import vocabulary
from scripts.pocket.continuations import extend
from scripts.pocket.corpus import split
from scripts.pocket.draft import load

WIDTH = 256
ROWS = 8
PROMPT = 64
PROMPTS = 64
NEW = 128


@dataclass(frozen=True)
class Held:
    """Figures on text that neither model was trained on."""

    tokens: int
    """Held-out tokens predicted."""
    bytes_per_token: float
    target_loss: float
    """Nats per token."""
    draft_loss: float
    target_accuracy: float
    """How often the likeliest token is the text's."""
    draft_accuracy: float
    agreement_on_text: float
    """How often the draft's first choice is the target's, on held-out text."""
    overlap_on_text: float
    """Mean over positions of the sum over tokens of min(target's probability, draft's): the most any lossless scheme can accept
    of one draft token at temperature 1."""
    agreement_on_greedy: float
    """How often the draft's first choice is the target's, along the target's own greedy continuations of held-out prompts."""


@dataclass(frozen=True)
class _Sums:
    tokens: float
    target_loss: float
    draft_loss: float
    target_right: float
    draft_right: float
    agreed: float
    overlap: float

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(*(mine + others for mine, others in zip(astuple(self), astuple(other), strict=True)))


def _sums(target_logits: Tensor, draft_logits: Tensor, labels: Tensor) -> _Sums:
    """Sums over positions; logits [positions, vocabulary], labels [positions]."""
    first, guess = target_logits.argmax(-1), draft_logits.argmax(-1)
    overlap = torch.minimum(target_logits.softmax(-1), draft_logits.softmax(-1)).sum()
    return _Sums(
        labels.numel(),
        cross_entropy(target_logits, labels, reduction="sum").item(), cross_entropy(draft_logits, labels, reduction="sum").item(),
        (first == labels).sum().item(), (guess == labels).sum().item(), (first == guess).sum().item(), overlap.item(),
    )  # fmt: skip


@torch.inference_mode()
def _walk(target: LlamaForCausalLM, draft: LlamaForCausalLM, rows: Tensor, first: int) -> _Sums:
    """Both models over `rows` [n, width], predictions of index `first` and later counted."""
    total = _Sums(0, 0, 0, 0, 0, 0, 0)
    for batch in rows.split(ROWS):
        wanted, guessed = (model(input_ids=batch).logits[:, first - 1 : -1].flatten(0, 1) for model in (target, draft))
        total += _sums(wanted, guessed, batch[:, first:].flatten())
        print(".", end="", flush=True)
    return total


def held_out_windows(corpus: np.ndarray, width: int, limit: int) -> Tensor:
    """At most `limit` windows spread evenly over `corpus` (uint16 [tokens]), int64 [windows, width], none overlapping another."""
    whole = len(corpus) // width
    picked = np.unique(np.linspace(0, whole - 1, num=min(limit, whole)).astype(int))
    return torch.from_numpy(corpus[: whole * width].reshape(whole, width)[picked].astype(np.int64))


def measure(models: Path, limit: int = 400) -> Held:
    """Measure the pair below `models` on at most `limit` held-out windows of 256 tokens."""
    tokenizer = vocabulary.load(models / "target")
    target, draft = load(models / "target"), load(models / "draft")
    documents = split()[1]
    corpus = vocabulary.encode(tokenizer, documents)
    text = _walk(target, draft, held_out_windows(corpus, WIDTH, limit), 1)
    greedy = extend(target, held_out_windows(corpus, PROMPT, PROMPTS), NEW, temperature=0.0, seed=0)
    own = _walk(target, draft, greedy, PROMPT)
    print(flush=True)
    return Held(
        tokens=int(text.tokens), bytes_per_token=sum(len(d.text.encode()) for d in documents) / (len(corpus) - len(documents)),
        target_loss=text.target_loss / text.tokens, draft_loss=text.draft_loss / text.tokens,
        target_accuracy=text.target_right / text.tokens, draft_accuracy=text.draft_right / text.tokens,
        agreement_on_text=text.agreed / text.tokens, overlap_on_text=text.overlap / text.tokens,
        agreement_on_greedy=own.agreed / own.tokens,
    )  # fmt: skip
