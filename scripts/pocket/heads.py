"""The draft heads of the pocket target: EAGLE, EAGLE-3 and one with a layer per step.

All learn the target's next-token distribution on its own features, several steps deep, half on windows of the corpus and half on the
target's own continuations. What makes them differ is in `RECIPES` and in the heads themselves (specsplit/model/heads).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss
from transformers import LlamaForCausalLM

from scripts.pocket import continuations, vocabulary
from scripts.pocket.continuations import Continuations
from scripts.pocket.corpus import split
from scripts.pocket.draft import digest_of, load
from scripts.pocket.lesson import Lesson, teach
from scripts.pocket.rollout import rollout, rows_of
from scripts.pocket.target import CONTEXT, windows
from scripts.pocket.training import Schedule, fit, forget_another_targets
from specsplit.model.heads import Eagle3Head, EagleHead, Head, MtpHead, TargetEmbeddings, save_head
from specsplit.values import DrafterKind

BATCHES = 48  # of 64 continuations of 192 tokens each
STEP_OFFSET = 3_000_000  # their corpus windows are other ones than the target's and the draft's
EAGLE3_LAYERS = (2, 4, 6)
EAGLE3_VOCABULARY = 1792  # of 2,048: 99.9 % of what the target writes at temperature 1 and 0; 1,280 would be 96.4 %
MTP_STEPS = 4
MTP_MLP = 192  # four layers in 4 MB
ROWS = 4  # of the corpus and of the continuations in a step, CONTEXT // 2 tokens each


@dataclass(frozen=True)
class Recipe:
    """How one kind of head learns."""

    depth: int
    """Steps rolled out, the head's own states read from the second on."""
    decay: float
    """Step s counts decay ** s, s from 0."""
    peak_lr: float
    steps: int
    feature_weight: float = 0.0
    """Weight of the smooth L1 distance between the head's states and the target's features (EAGLE, arXiv 2401.15077)."""
    noise: float = 0.0
    """Uniform noise on the features read, at most this large: guessed states will not be exact either (EAGLE)."""


RECIPES: dict[DrafterKind, Recipe] = {
    # Steps two and three on its own states are HASS's (arXiv 2408.15766).
    DrafterKind.EAGLE: Recipe(depth=3, decay=0.8, peak_lr=3e-3, steps=1200, feature_weight=1.0, noise=0.1),
    # The training-time test and the fused features of arXiv 2503.01840.
    DrafterKind.EAGLE3: Recipe(depth=4, decay=0.8, peak_lr=3e-3, steps=2600),
    # A layer per step, as DeepSeek-V3 (arXiv 2412.19437) and MiMo (arXiv 2505.07608) have one or a few.
    DrafterKind.MULTI_LAYER_EAGLE: Recipe(depth=4, decay=0.8, peak_lr=3e-3, steps=1200),
}


def soft_cross_entropy(guessed: Tensor, wanted: Tensor) -> Tensor:
    """Mean over rows of the cross-entropy of softmax(guessed) against `wanted`, in nats; both [rows, tokens].

    `wanted` need not sum to 1: what the target gives to tokens that the head does not have is beyond its reach.
    """
    return -(wanted * guessed.log_softmax(-1)).sum(-1).mean()


def loss_of(head: Head, recipe: Recipe, lesson: Lesson, seed: int) -> Tensor:
    """The head's loss on one batch, all its steps weighted; `seed` is the noise's."""
    rows = rows_of(lesson.tokens.shape[1], recipe.depth)
    read = lesson.features[:, :rows]
    if recipe.noise:
        chance = torch.Generator().manual_seed(seed)
        read = read + recipe.noise * (2 * torch.rand(read.shape, generator=chance) - 1)
    wanted = lesson.logits.softmax(-1)
    if head.target_ids is not None:
        wanted = wanted[..., head.target_ids]
    total = torch.zeros(())
    for ahead, (guessed, states) in enumerate(rollout(head, lesson.tokens, head.fuse(read), recipe.depth)):
        answered = slice(1 + ahead, 1 + ahead + rows)
        loss = soft_cross_entropy(guessed, wanted[:, answered].flatten(0, 1))
        if recipe.feature_weight:
            loss = loss + recipe.feature_weight * smooth_l1_loss(states, lesson.features[:, answered].flatten(0, 1))
        total = total + recipe.decay**ahead * loss
    return total


def frequent(own: Continuations, size: int) -> Tensor:
    """The `size` tokens that the target writes most often, int64 [size], ascending."""
    written = own.sequences[:, continuations.PROMPT :].long().flatten()
    return torch.bincount(written, minlength=vocabulary.VOCAB_SIZE).topk(size).indices.sort().values


def build(kind: DrafterKind, target_folder: Path, target: LlamaForCausalLM, own: Continuations) -> Head:
    """A head of layers like the target's that has learnt nothing; the norms before the LM head, and EAGLE-3's own one, are the target's."""
    torch.manual_seed(0)
    ends = TargetEmbeddings.load(target_folder, lm_head=kind is not DrafterKind.EAGLE3)
    layer = copy.deepcopy(target.config)
    layer.dtype = torch.float32
    if kind is DrafterKind.EAGLE:
        return EagleHead(layer, ends, bias=False)
    if kind is DrafterKind.MULTI_LAYER_EAGLE:
        layer.intermediate_size = MTP_MLP
        head = MtpHead([layer] * MTP_STEPS, ends)
        norms = [f"steps.{step}.final_norm.weight" for step in range(MTP_STEPS)]
        head.load_state_dict(dict.fromkeys(norms, target.model.norm.weight), strict=False)
        return head
    layer.tie_word_embeddings = False
    proposed = frequent(own, EAGLE3_VOCABULARY)
    head = Eagle3Head(layer, ends, layers=EAGLE3_LAYERS, draft_vocab_size=EAGLE3_VOCABULARY)
    head.set_draft_tokens(proposed)
    end = {"lm_head.weight": target.lm_head.weight[proposed], "norm.weight": target.model.norm.weight}
    head.load_state_dict(end, strict=False)
    return head


@dataclass(frozen=True)
class School:
    """Where a head learns: the target, the corpus (uint16 [tokens]) and the target's own continuations."""

    target: LlamaForCausalLM
    corpus: np.ndarray
    own: Continuations

    def batches(self, step: int, steps: int) -> tuple[Tensor, Tensor]:
        """Tokens [rows, width] of the corpus and of continuations, the same for the same `step` of `steps`."""
        # Like the draft's: short windows first, the last fifth of the steps teaches the positions beyond them.
        long = step >= 0.8 * steps
        rows, width = (ROWS // 2, CONTEXT) if long else (ROWS, CONTEXT // 2)
        return windows(self.corpus, STEP_OFFSET + step, rows, width), self.own.batch(step, ROWS)

    def train(self, head: Head, recipe: Recipe, state: Path, save: Callable[[], None]) -> None:
        """Train `head`, going on from `state`; `save` is called now and then.

        Matrices are multiplied in bf16 where the processor has AVX-512, which makes it several times faster; without, slower.
        """
        fast = torch.backends.cpu.get_cpu_capability() == "AVX512"

        def loss_of_step(step: int) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=fast):
                lessons = [
                    teach(self.target, tokens, head.shape.need.layers) for tokens in self.batches(step, recipe.steps)
                ]
                return torch.stack([loss_of(head, recipe, lesson, step) for lesson in lessons]).mean()

        fit(head, loss_of_step, Schedule(recipe.steps, recipe.peak_lr), state, save)


def train(kind: DrafterKind, models: Path, state_folder: Path, steps: int | None = None) -> None:
    """Train the head `kind` for the target below `models` into a folder beside it; resumes from `state_folder`.

    steps: None means the recipe's.
    """
    recipe = RECIPES[kind] if steps is None else replace(RECIPES[kind], steps=steps)
    target, digest = load(models / "target").requires_grad_(False), digest_of(models / "target")
    corpus = vocabulary.encode(vocabulary.load(models / "target"), split()[0])
    own = continuations.generate(target, digest, corpus, state_folder / "continuations.pt", BATCHES)
    head = build(kind, models / "target", target, own)
    print(f"{sum(p.numel() for p in head.parameters() if p.requires_grad):,} parameters", flush=True)
    state = state_folder / f"{kind.value}.pt"
    forget_another_targets(state, digest)
    School(target, corpus, own).train(
        head, recipe, state, lambda: save_head(copy.deepcopy(head).bfloat16(), models / kind.value)
    )
