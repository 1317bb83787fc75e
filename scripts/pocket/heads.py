"""The draft heads of the pocket target, trained as `specsplit train-head` trains any, on what the target writes behind the corpus."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.pocket.corpus import split
from specsplit.cli.progress import metering
from specsplit.training.order import HeadOrder
from specsplit.training.run import train_head
from specsplit.values import DrafterKind

OPTIONS: dict[DrafterKind, dict[str, Any]] = {
    DrafterKind.EAGLE: {"epochs": 3, "learning_rate": 3e-3},
    # 1,792 of 2,048 tokens: 99.9 % of what the target writes at temperature 1 and 0; 1,280 would be 96.4 %.
    DrafterKind.EAGLE3: {"epochs": 6, "layers": (2, 4, 6), "draft_vocab": 1792},
    DrafterKind.DFLASH: {
        # Near what is greedy, which a block has to guess several tokens of.
        "temperature": 0.5,
        "epochs": 2,
        "batch_tokens": 1024,
        "learning_rate": 2e-3,
        "depth": 8,
        "layers": (2, 4, 6),
        "num_layers": 2,
        "windows": (1, 0),
        "causal": True,
    },
    DrafterKind.DSPARK: {"epochs": 6, "layers": (2, 4, 6), "num_layers": 2},
    # Four layers in 4 MB.
    DrafterKind.MULTI_LAYER_EAGLE: {"epochs": 3, "learning_rate": 3e-3, "intermediate_size": 192},
}
FILES = ("config.json", "model.safetensors", "README.md")


def order_of(kind: DrafterKind, models: Path, corpus: Path, out: Path) -> HeadOrder:
    """The order of a head for the target below `models`, on a file of texts."""
    common: dict[str, Any] = {"max_length": 256, "max_new_tokens": 192, "samples": 3200, "held_out": 128}
    return HeadOrder(models / "target", (corpus,), kind, out, **{**common, **OPTIONS[kind]})


def write_corpus(file: Path) -> None:
    """Write the training files of the corpus as lines of JSON; files that are held out of the target's training are not among them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"text": document.text}) + "\n" for document in split()[0] if document.text.strip())
    file.write_text("".join(lines), encoding="utf-8")


def train(kind: DrafterKind, models: Path, state: Path, epochs: int | None = None) -> None:
    """Train the head `kind` for the target below `models` into a folder beside it; an interrupted run in `state` is gone on with.

    epochs: None means the recipe's.
    """
    corpus, out = state / "corpus.jsonl", state / kind.value
    write_corpus(corpus)
    order = order_of(kind, models, corpus, out)
    figures = train_head(order if epochs is None else replace(order, epochs=epochs), print, metering)
    (models / kind.value).mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(out / name, models / kind.value / name)
    print(f"{kind.value}: {figures.accept_length:.2f} tokens a step with a chain of {order.ahead} on held-out texts")
