"""The standalone draft: a Llama of about 0.5 M parameters, distilled from the target.

It learns the target's distribution, not the text: the loss is the KL divergence from the target's next-token distribution to the
draft's, half on corpus windows and half on the target's own continuations (arXiv 1503.02531; that drafts should be distilled on
what their target writes: DistillSpec, arXiv 2310.08461).
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import kl_div
from transformers import LlamaForCausalLM

from scripts.pocket import continuations, vocabulary
from scripts.pocket.corpus import split
from scripts.pocket.target import CONTEXT, config, save_bf16, windows
from specsplit.cli.progress import metering
from specsplit.training.fit import Schedule, fit

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
BATCHES = 24  # of 64 continuations of 192 tokens each
STEP_OFFSET = 2_000_000  # its corpus windows are other ones than the target's


def load(folder: Path) -> LlamaForCausalLM:
    """The model in `folder`, in float32, ready for inference."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def digest_of(folder: Path) -> str:
    """Hex SHA-256 of the weights in `folder`."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def forget_another_targets(state: Path, digest: str) -> None:
    """Delete the checkpoint in `state` if it was learnt from a target of other weights than `digest`."""
    note = state.with_suffix(".target")
    if state.exists() and (not note.exists() or note.read_text() != digest):
        print("the target has changed since this training began: starting again", flush=True)
        state.unlink()
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(digest)


def divergence(target: LlamaForCausalLM, draft: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Mean over all positions of `tokens` [rows, width] of KL(target || draft), in nats."""
    with torch.no_grad():
        wanted = target(input_ids=tokens).logits.log_softmax(-1)
    guessed = draft(input_ids=tokens).logits.log_softmax(-1)
    return kl_div(guessed.flatten(0, 1), wanted.flatten(0, 1), log_target=True, reduction="batchmean")


def train(target_folder: Path, draft_folder: Path, state_folder: Path, steps: int, batches: int = BATCHES) -> None:
    """Distil the target in `target_folder` into `draft_folder`; resumes from `state_folder`."""
    tokenizer, target, digest = vocabulary.load(target_folder), load(target_folder), digest_of(target_folder)
    corpus = vocabulary.encode(tokenizer, split()[0])
    own = continuations.generate(target, digest, corpus, state_folder / "continuations.pt", batches)
    draft_folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(target_folder / name, draft_folder / name)
    torch.manual_seed(0)
    draft = LlamaForCausalLM(config(vocabulary.end_of(tokenizer), hidden=128, layers=2, heads=4, kv_heads=2, mlp=256))
    print(f"{draft.num_parameters():,} parameters, {len(own.sequences):,} continuations", flush=True)

    def loss_of_step(step: int) -> Tensor:
        # Like the target's: short windows first, the last fifth of the steps teaches the positions beyond them.
        long = step >= 0.8 * steps
        text = windows(corpus, STEP_OFFSET + step, rows=2 if long else 4, width=CONTEXT if long else CONTEXT // 2)
        return 0.5 * divergence(target, draft, text) + 0.5 * divergence(target, draft, own.batch(step, rows=4))

    state = state_folder / "draft.pt"
    forget_another_targets(state, digest)
    with metering("training") as meter:
        fit(draft, loss_of_step, Schedule(steps, peak_lr=4e-3), state, lambda: save_bf16(draft, draft_folder), meter)
    if digest_of(target_folder) != digest:
        print("warning: the target's weights changed while its draft was trained; run this stage again", flush=True)
