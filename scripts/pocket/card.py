"""Measure the pocket pair on held-out files and write a model card beside each."""

from __future__ import annotations

import json
import math
import sysconfig
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from scripts.pocket import continuations, corpus, draft
from scripts.pocket.draft import load
from scripts.pocket.measure import Held, measure

HEADER = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
language: code
tags: [specsplit, speculative-decoding, pocket]
---
"""

TARGET = """# specsplit pocket target

A Llama of {parameters:,} parameters that writes Python after a fashion. It is the *target* of specsplit's demo, tests
and benchmarks: small enough to commit and to run on one CPU core, real enough that drafts are accepted and rejected as they
are with a large model. It is of no use for anything else. Its draft is `models/pocket/draft`.

{shape}

## Recipe

`python -m scripts.pocket target` (scripts/pocket/target.py) trains the tokenizer and the model from nothing on the source of
the running Python's standard library ({training_files} files; the model here: Python {python}); {held_files} files are held
out by a hash of their path. AdamW, cosine schedule, peak learning rate 2e-3, windows of 256 tokens, the last fifth of the
steps with windows of 512; float32, two CPU cores, {steps} steps.

## Held-out figures

{tokens:,} tokens of the held-out files, in windows of 256.

| figure | value |
|---|---|
| loss | {target_loss:.3f} nats per token ({target_bits:.2f} bits per byte; {bytes_per_token:.2f} bytes per token) |
| perplexity | {target_perplexity:.1f} per token |
| next-token accuracy | {target_accuracy:.3f} |
"""

DRAFT = """# specsplit pocket draft

A Llama of {parameters:,} parameters with the vocabulary of `models/pocket/target`, distilled from it: the *standalone* draft
of specsplit's demo, tests and benchmarks. Made to guess what that target picks next, and of no use for anything else.

{shape}

## Recipe

`python -m scripts.pocket draft` (scripts/pocket/draft.py). The loss is the KL divergence from the target's next-token
distribution to the draft's, half on windows of the corpus and half on {own:,} tokens of the target's own continuations of
corpus prompts (a third greedy, two thirds sampled at temperature 1). AdamW, cosine schedule, peak learning rate 4e-3; float32,
two CPU cores, {steps} steps.

## Held-out figures

{tokens:,} tokens of files that neither model has seen, in windows of 256.

| figure | value |
|---|---|
| the draft's first choice is the target's, on held-out text | {agreement_on_text:.3f} |
| the draft's first choice is the target's, on the target's own greedy continuations of held-out prompts | {agreement_on_greedy:.3f} |
| overlap of the two distributions at temperature 1 (mean of the sum of the smaller probability) | {overlap_on_text:.3f} |
| loss | {draft_loss:.3f} nats per token (target: {target_loss:.3f}) |
| next-token accuracy | {draft_accuracy:.3f} (target: {target_accuracy:.3f}) |
"""

FOOTER = """
Apache-2.0. The training text is the Python standard library's source (PSF license), none of which is stored here. Figures
written by `python -m scripts.pocket card`.
"""


def _shape(model: LlamaForCausalLM, folder: Path) -> str:
    c, size = model.config, (folder / "model.safetensors").stat().st_size
    return (
        f"{c.num_hidden_layers} layers, width {c.hidden_size}, {c.num_attention_heads} heads, {c.num_key_value_heads} KV heads, "
        f"MLP {c.intermediate_size}, tied embeddings, vocabulary {c.vocab_size} (byte-level BPE), "
        f"context {c.max_position_embeddings}; bf16 safetensors, {size / 1e6:.1f} MB.\n"
        "`AutoModelForCausalLM.from_pretrained` loads it."
    )


def steps_done(file: Path) -> str:
    """Steps done according to a training checkpoint, or words to that effect."""
    return f"{torch.load(file, weights_only=True)['step']:,}" if file.exists() else "the default number of"


def _card(template: str, folder: Path, held: Held, **more: object) -> None:
    model = load(folder)
    derived = {
        "target_perplexity": math.exp(held.target_loss),
        "target_bits": held.target_loss / math.log(2) / held.bytes_per_token,
        "parameters": model.num_parameters(),
        "shape": _shape(model, folder),
        "python": sysconfig.get_python_version(),
    }
    (folder / "README.md").write_text(
        HEADER + "\n" + template.format(**asdict(held), **derived, **more) + FOOTER, encoding="utf-8"
    )


def write(models: Path, state: Path = Path("build/pocket")) -> None:
    """Measure the pair below `models`, print the figures, write both cards."""
    held = measure(models)
    print(json.dumps(asdict(held), indent=2))
    training, aside = corpus.split()
    _card(
        TARGET,
        models / "target",
        held,
        training_files=len(training),
        held_files=len(aside),
        steps=steps_done(state / "target.pt"),
    )
    own = draft.BATCHES * continuations.ROWS * continuations.NEW
    _card(DRAFT, models / "draft", held, own=own, steps=steps_done(state / "draft.pt"))
