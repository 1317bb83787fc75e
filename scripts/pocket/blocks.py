"""The block drafter of the pocket target: DFlash 2, which drafts eight tokens in one forward.

It learns the target's next-token distributions behind every position of blocks that begin anywhere in a text. In half of the blocks the
first few tokens behind the anchor are shown to it and not masked: so it is asked when what lies between the features and the token to go
on from is drafted already. A token of a block sees those before it alone, so that those that are shown are learnt from too; and its first
layer sees the last feature and no other, as an EAGLE head's does by itself, without which it takes several times as long to learn.

    B   sequences      W   tokens of each      A   blocks of each      N   tokens of a block
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaForCausalLM, Qwen3Config

from scripts.pocket import continuations, vocabulary
from scripts.pocket.continuations import Continuations
from scripts.pocket.corpus import split
from scripts.pocket.draft import digest_of, load
from scripts.pocket.target import CONTEXT, windows
from specsplit.cli.progress import metering
from specsplit.model.attention.interface import tokens_first
from specsplit.model.heads import BlockConfig, BlockHead, BlockSight, TargetEmbeddings, save_block_head
from specsplit.model.heads.block_config import ConvConfig, SelectorConfig
from specsplit.training.fit import Schedule, fit

LAYERS: Final = (2, 4, 6)
BLOCK: Final = 8
NUM_LAYERS: Final = 2
MASK: Final = 0
"""The end of a text stands for the mask: inside of a block it hardly ever stands for itself."""
BLOCKS: Final = 64
MOST_SHOWN: Final = 4
DECAY: Final = 0.85
"""What a position counts, by its distance from the last token that is known."""
SAID: Final = BlockConfig(
    layers=LAYERS,
    size=BLOCK,
    mask_token=MASK,
    from_anchor=True,
    sights=(BlockSight(1, causal=True), BlockSight(causal=True)),
    conv=ConvConfig(taps=2, group_size=16),
    selector=SelectorConfig(rank=64, top_k=16),
)


STEPS: Final = 1000
BATCHES: Final = 48
"""Of the target's continuations, 64 of them in each."""
ROWS: Final = 4
"""Of the corpus, and of the continuations, in a step."""
STEP_OFFSET: Final = 3_000_000
"""Its corpus windows are other ones than the target's and the draft's."""


@dataclass(frozen=True)
class Lesson:
    """One batch as the target read it."""

    tokens: Tensor
    """[B, W]"""
    features: Tensor
    """[B, W, F] the hidden states behind LAYERS, side by side."""
    logits: Tensor
    """[B, W, V] after each token."""


@torch.no_grad()
def teach(target: LlamaForCausalLM, tokens: Tensor) -> Lesson:
    """Let `target` read `tokens` [B, W]."""
    behind: list[Tensor] = []
    # The last of the hidden states is the one behind the final norm: transformers does not give the one before it.
    hook = target.model.norm.register_forward_pre_hook(lambda _, args: behind.append(args[0]))
    read = target.model(input_ids=tokens, use_cache=False, output_hidden_states=True)
    hook.remove()
    states = [*read.hidden_states[:-1], *behind]
    return Lesson(
        tokens, torch.cat([states[layer] for layer in LAYERS], dim=-1), target.lm_head(read.last_hidden_state)
    )


def build(target_folder: Path, context: int) -> BlockHead:
    """A drafter that has learnt nothing, of layers as wide as the pocket target's."""
    torch.manual_seed(0)
    target = TargetEmbeddings.load(target_folder)
    config = Qwen3Config(
        vocab_size=target.vocabulary.size, hidden_size=target.hidden_size, intermediate_size=512, num_hidden_layers=NUM_LAYERS,
        num_attention_heads=8, num_key_value_heads=4, head_dim=32, max_position_embeddings=context, rms_norm_eps=1e-5,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    head = BlockHead(SAID, config, target, whole_vocabulary=True, own_lm_head=False)
    selector = head.choice.candidate_selector
    assert selector is not None
    for codebook in (selector.predecessor_codebook, selector.successor_codebook):
        torch.nn.init.normal_(codebook, std=0.1)
    return head


@dataclass(frozen=True)
class Blocks:
    """Where blocks begin in a batch, and how much of them is shown."""

    anchors: Tensor
    """[B, A] indices of their first tokens."""
    shown: Tensor
    """[B, A] tokens behind the first that are shown."""
    gaps: Tensor
    """[B, A] tokens before the first without features, where as many are shown as may be."""

    @classmethod
    def drawn(cls, sequences: int, width: int, seed: int) -> Blocks:
        """Draw some, the same for the same `seed`."""
        chance = torch.Generator().manual_seed(seed)
        places = torch.rand(sequences, width - BLOCK - 1, generator=chance).argsort(-1)[:, :BLOCKS] + 1
        shown = torch.randint(-MOST_SHOWN, MOST_SHOWN + 1, places.shape, generator=chance).clamp(min=0)
        gaps = torch.randint(-MOST_SHOWN, MOST_SHOWN + 1, places.shape, generator=chance).clamp(min=0)
        return cls(places, shown, torch.where(shown == MOST_SHOWN, gaps, 0))

    @property
    def places(self) -> Tensor:
        """[B, A, N] indices of all their tokens."""
        return self.anchors.unsqueeze(-1) + torch.arange(BLOCK)

    @property
    def weights(self) -> Tensor:
        """[B, A, N] what the token behind each position counts: those that are shown a half, of others the nearer the more."""
        ahead = torch.arange(BLOCK) - self.shown.unsqueeze(-1)
        return torch.where(ahead >= 0, DECAY ** ahead.clamp(min=0).float(), 0.5)


class BlockAttention:
    """Attention of the blocks of several sequences (a ForwardBatch), each to the features before it and to itself."""

    def __init__(self, blocks: Blocks, context: list[tuple[Tensor, Tensor]], width: int) -> None:
        """context: keys and values [B * W, kv_heads, head_dim] of the features, by layer."""
        self._sequences = len(blocks.anchors)
        self._context = context
        ends = (blocks.anchors - blocks.gaps).clamp(min=1).unsqueeze(-1)
        before = torch.arange(width) < ends
        last = torch.arange(width) == ends - 1
        numbers = torch.arange(blocks.anchors.shape[1]).repeat_interleave(BLOCK)
        own = (numbers[:, None] == numbers).tril().expand(self._sequences, -1, -1)
        self._sees = [
            torch.cat([seen.repeat_interleave(BLOCK, dim=1), own], dim=-1).unsqueeze(1) for seen in (last, before)
        ]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        """See ForwardBatch; T is B * A * N, sequence by sequence."""
        seen = [
            torch.cat([self._by_sequence(before), self._by_sequence(tokens_first(own))], dim=2)
            for before, own in zip(self._context[layer], (key, value), strict=True)
        ]
        asked = self._by_sequence(tokens_first(query))
        out = scaled_dot_product_attention(
            asked.to(seen[1].dtype),
            seen[0].to(seen[1].dtype),
            seen[1],
            attn_mask=self._sees[layer],
            scale=scaling,
            enable_gqa=True,
        )
        return out.transpose(1, 2).reshape(1, -1, *out.shape[1::2])

    def _by_sequence(self, rows: Tensor) -> Tensor:
        """[B * n, heads, width] -> [B, heads, n, width]"""
        return rows.unflatten(0, (self._sequences, -1)).transpose(1, 2)


def hidden_of(head: BlockHead, lesson: Lesson, blocks: Blocks) -> Tensor:
    """The hidden states [B, A, N, width] of blocks of a lesson."""
    sequences, width = lesson.tokens.shape
    positions = torch.arange(width).repeat(sequences)
    context = head.keys_values(head.fuse(lesson.features).flatten(0, 1), positions)
    rows = torch.arange(sequences)[:, None, None]
    known = torch.arange(BLOCK) <= blocks.shown.unsqueeze(-1)
    tokens = torch.where(known, lesson.tokens[rows, blocks.places], MASK)
    found = head(tokens.flatten(), blocks.places.flatten(), BLOCK, BlockAttention(blocks, context, width))
    return found.view(*tokens.shape, -1)


def loss_of(head: BlockHead, lesson: Lesson, seed: int) -> Tensor:
    """Cross-entropy against the target's distributions, of all tokens and, given the token before, of the selector's candidates."""
    sequences, width = lesson.tokens.shape
    blocks = Blocks.drawn(sequences, width, seed)
    hidden = hidden_of(head, lesson, blocks).flatten(0, 2)
    rows = torch.arange(sequences)[:, None, None].expand_as(blocks.places).flatten()
    places, weights = blocks.places.flatten(), blocks.weights.flatten()
    logits = head.draft_logits(hidden)
    wanted = lesson.logits[rows, places].softmax(-1)
    plain = -(wanted * logits.log_softmax(-1)).sum(-1)
    selector = head.choice.candidate_selector
    assert selector is not None
    candidates, scores = selector.scores(lesson.tokens[rows, places], hidden, logits.detach())
    chosen = -(wanted.gather(-1, candidates) * scores.float().log_softmax(-1)).sum(-1)
    return ((plain + chosen) * weights).sum() / weights.sum()


def train(models: Path, state_folder: Path, steps: int = STEPS) -> None:
    """Train the drafter for the target below `models` into a folder beside it; resumes from `state_folder`."""
    target, digest = load(models / "target").requires_grad_(False), digest_of(models / "target")
    corpus = vocabulary.encode(vocabulary.load(models / "target"), split()[0])
    own = continuations.generate(target, digest, corpus, state_folder / "continuations.pt", BATCHES)
    head = build(models / "target", CONTEXT)
    head.body.norm.load_state_dict(target.model.norm.state_dict())
    fast = torch.backends.cpu.get_cpu_capability() == "AVX512"

    def loss_of_step(step: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=fast):
            lessons = [teach(target, tokens) for tokens in batches(corpus, own, step, steps)]
            return torch.stack([loss_of(head, lesson, step) for lesson in lessons]).mean()

    state = state_folder / "dflash.pt"
    schedule = Schedule(steps, 2.5e-3, save_every=20)
    with metering("dflash") as meter:
        fit(
            head,
            loss_of_step,
            schedule,
            state,
            lambda: save_block_head(head, models / "dflash", dtype=torch.bfloat16),
            meter,
        )


def batches(corpus: np.ndarray, own: Continuations, step: int, steps: int) -> tuple[Tensor, Tensor]:
    """Tokens [rows, width] of the corpus and of continuations; the last fifth of the steps teaches positions beyond short windows."""
    rows, width = (ROWS // 2, CONTEXT) if step >= 0.8 * steps else (ROWS, CONTEXT // 2)
    return windows(corpus, STEP_OFFSET + step, rows, width), own.batch(step, ROWS)
