"""The pocket target: a Llama of about 5 M parameters, trained on the standard library's source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from scripts.pocket import vocabulary
from scripts.pocket.corpus import split
from specsplit.cli.progress import metering
from specsplit.training.fit import Schedule, fit

CONTEXT = 512


def config(
    eos_token_id: int, *, hidden: int = 256, layers: int = 6, heads: int = 8, kv_heads: int = 4, mlp: int = 704
) -> LlamaConfig:
    """A small Llama with tied embeddings; the defaults are the target's."""
    return LlamaConfig(
        vocab_size=vocabulary.VOCAB_SIZE, hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=eos_token_id, pad_token_id=eos_token_id,
    )  # fmt: skip


def windows(tokens: np.ndarray, step: int, rows: int, width: int = CONTEXT) -> Tensor:
    """`rows` random windows of the corpus, int64 [rows, width], the same for the same `step`."""
    rng = np.random.default_rng(step)
    starts = rng.integers(0, len(tokens) - width, size=rows)
    return torch.from_numpy(np.stack([tokens[s : s + width] for s in starts]).astype(np.int64))


def save_bf16(model: LlamaForCausalLM, folder: Path) -> None:
    """Save a bf16 copy of `model` to `folder`, leaving the float32 original as it is."""
    copy = LlamaForCausalLM(model.config).bfloat16()
    copy.load_state_dict(model.state_dict())
    copy.generation_config.pad_token_id = model.config.pad_token_id
    copy.save_pretrained(folder)


def train(folder: Path, state: Path, steps: int) -> None:
    """Train the tokenizer if there is none, then the target, into `folder`."""
    tokenizer = vocabulary.load(folder) if (folder / "tokenizer.json").exists() else vocabulary.train(folder)
    training, _ = split()
    tokens = vocabulary.encode(tokenizer, training)
    print(f"{len(training)} files, {len(tokens):,} tokens", flush=True)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config(vocabulary.end_of(tokenizer)))
    print(f"{model.num_parameters():,} parameters", flush=True)

    def loss_of_step(step: int) -> Tensor:
        # Short windows learn faster; the last fifth of the steps teaches the positions beyond them.
        batch = (
            windows(tokens, step, rows=8, width=CONTEXT // 2) if step < 0.8 * steps else windows(tokens, step, rows=4)
        )
        return model(input_ids=batch, labels=batch).loss

    with metering("training") as meter:
        fit(model, loss_of_step, Schedule(steps, peak_lr=2e-3), state, lambda: save_bf16(model, folder), meter)
