"""A model card beside each head: what it is, how it was made, and how well it guesses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from scripts.pocket import continuations, heads
from scripts.pocket.card import FOOTER, HEADER, steps_done
from scripts.pocket.heads import RECIPES, Recipe
from scripts.pocket.measure import PROMPTS, WIDTH
from scripts.pocket.measure_heads import DEPTH, HeldHead, measure_head
from scripts.pocket.target import CONTEXT
from specsplit.values import DrafterKind

CARD = """# specsplit pocket {title}

{what} for `models/pocket/target`: {parameters:,} parameters that guess what that target picks next, and are of no use for anything else.
{layout} What it lacks (embeddings{borrowed}) is the target's. bf16 safetensors, {megabytes:.1f} MB.

## Recipe

`python -m scripts.pocket head {kind}` (scripts/pocket/heads.py). The loss is the cross-entropy against the target's next-token
distribution{loss}.
The head learns {depth} steps deep; step s, from 0, counts {decay} to the power of s. Half of the text is windows of the corpus, half the
target's own continuations of corpus prompts ({own:,} tokens, a third greedy, two thirds sampled at temperature 1). AdamW,
cosine schedule, peak learning rate {peak_lr:.0e}; weights in float32, matrix products in bf16, one CPU core, {steps} steps of
{step_tokens:,} tokens.

## Held-out figures

{tokens:,} tokens of files that neither the target nor the head has seen, in windows of {width}; and the target's own greedy continuations
of {prompts} prompts from them. Step 1 knows the target's features up to the last token, step k up to the one k - 1 before it.

| figure | value |
|---|---|
| the head's first choice is the target's, on held-out text, step 1 | {agreement_on_text:.3f} |
| overlap of the two distributions at temperature 1 (mean of the sum of the smaller probability), step 1 | {overlap_on_text:.3f} |
| the head's first choice is the target's, on the target's greedy continuations, step {steps_asked} | {on_greedy} |
| tokens per step of the target with a chain of {deep} drafted tokens, on its greedy continuations | {chain_on_greedy:.2f} |
"""


@dataclass(frozen=True)
class Words:
    """What the card of one kind says that no other does."""

    title: str
    what: str
    layout: str
    borrowed: str = " and LM head"
    loss: str = ""


WORDS = {
    DrafterKind.EAGLE: Words(
        title="EAGLE head",
        what="An EAGLE head (arXiv 2401.15077)",
        layout="One layer on the target's last hidden state, in the layout of EAGLE's authors.",
        loss=" and the smooth L1 distance of the head's states to the target's features,\nwhich are read with uniform noise",
    ),
    DrafterKind.EAGLE3: Words(
        title="EAGLE-3 head",
        what="An EAGLE-3 head (arXiv 2503.01840)",
        layout=f"One layer on the hidden states behind layers {', '.join(map(str, heads.EAGLE3_LAYERS))} (counted from 1), with an "
        f"LM head for the {heads.EAGLE3_VOCABULARY:,} tokens that the target writes most often, in the layout of SpecForge.",
        borrowed="",
        loss=" over the head's own vocabulary, from the second step on with its own states (the training-time test)",
    ),
    DrafterKind.MULTI_LAYER_EAGLE: Words(
        title="multi-token prediction head",
        what="Multi-token prediction (arXiv 2412.19437)",
        layout=f"{heads.MTP_STEPS} layers on the target's last hidden state, one for each token ahead, in the layout of MiMo.",
    ),
}


def _parameters(folder: Path) -> int:
    tensors = load_file(folder / "model.safetensors")
    return sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())


def _facts(kind: DrafterKind, recipe: Recipe, held: HeldHead, models: Path, state: Path) -> dict[str, object]:
    folder = models / kind.value
    return {
        **vars(WORDS[kind]),
        **vars(recipe),
        **vars(held),
        "kind": kind.value,
        "parameters": _parameters(folder),
        "megabytes": (folder / "model.safetensors").stat().st_size / 1e6,
        "own": heads.BATCHES * continuations.ROWS * continuations.NEW,
        "steps": steps_done(state / f"{kind.value}.pt"),
        "step_tokens": 2 * heads.ROWS * CONTEXT // 2,
        "width": WIDTH,
        "prompts": PROMPTS,
        "deep": DEPTH,
        "steps_asked": " / ".join(str(step) for step in range(1, DEPTH + 1)),
        "on_greedy": " / ".join(f"{agreement:.3f}" for agreement in held.agreement_on_greedy),
    }


def write_heads(models: Path, state: Path = Path("build/pocket")) -> None:
    """Measure every head below `models`, print the figures, write the cards."""
    for kind, recipe in RECIPES.items():
        if (models / kind.value / "model.safetensors").exists():
            held = measure_head(kind, models)
            print(kind.value, json.dumps(vars(held), indent=2))
            card = HEADER + "\n" + CARD.format(**_facts(kind, recipe, held, models, state)) + FOOTER
            (models / kind.value / "README.md").write_text(card, encoding="utf-8")
