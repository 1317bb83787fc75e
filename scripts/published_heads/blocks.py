"""Block drafters in every variant that `speculators` has: DFlash, DFlash 2 and DSpark."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dflash2 import core as dflash2
from speculators.models.dflash2.config import DFlash2SpeculatorConfig
from speculators.models.dspark import core as dspark
from speculators.models.dspark.config import DSparkSpeculatorConfig
from torch import Tensor
from transformers import PretrainedConfig

from scripts.published_heads.tiny import DRAFT_VOCAB, HIDDEN, VOCAB, built, filled, inputs, qwen3, save
from specsplit.training.speculators_blocks import teach_shown_tokens

LENGTH: Final = 18
BLOCK: Final = 4
ANCHORS: Final = 6
_WINDOWS: Final = {
    "use_sliding_window": True,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention"],
}


def write_dflash(folder: Path, layer: PretrainedConfig, seed: int, **options: Any) -> None:
    """Write a drafter as the library saves it, and the logits [ANCHORS, BLOCK, draft V] of its forward for blocks behind `anchors`."""
    model, given = _made(DFlashDraftModel, DFlashSpeculatorConfig, layer, seed, options)
    _, blocks = _forward(model, given)
    save(folder, model, {**given, **blocks})


def write_dflash2(folder: Path, layer: PretrainedConfig, seed: int, **options: Any) -> None:
    """Write a drafter with a selector: besides, its `candidates` [ANCHORS, BLOCK, k], and their `scores` behind the tokens of the text."""
    options = {"draft_vocab_size": VOCAB, "conv_group_size": 4, "selector_rank": 4, "selector_top_k": 6, **options}
    model, given = _made(dflash2.DFlash2DraftModel, DFlash2SpeculatorConfig, layer, seed, options)
    hidden, blocks = _forward(model, given)
    indices = (blocks["anchors"][:, None] + torch.arange(BLOCK)).flatten()
    before = model._predecessor_ids(given["tokens"][None], indices)  # pyright: ignore[reportPrivateUsage]
    with torch.no_grad():
        candidates, scores = model.candidate_selector.select(blocks["logits"], hidden, before)
    save(folder, model, {**given, **blocks, "candidates": candidates, "scores": scores})


def write_taught(folder: Path, layer: PretrainedConfig, seed: int, **options: Any) -> None:
    """Write a drafter with a selector whose blocks are causal and show tokens, as it is trained here: besides, how many tokens each of
    its blocks shows behind the first [ANCHORS], and how many features before the first are `missing`."""
    taught = type("DFlash2DraftModel", (dflash2.DFlash2DraftModel,), {})
    teach_shown_tokens(taught, causal=True)
    options = {"draft_vocab_size": VOCAB, "conv_group_size": 4, "selector_rank": 4, "selector_top_k": 6, **options}
    model, given = _made(taught, DFlash2SpeculatorConfig, layer, seed, options)
    _, blocks = _forward(model, given)
    save(folder, model, {**given, **blocks, "shown": model.shown.tokens, "missing": model.shown.missing})
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**facts, "is_causal": True}, indent=2, sort_keys=True) + "\n")


def write_dspark(folder: Path, layer: PretrainedConfig, seed: int, **options: Any) -> None:
    """Write a drafter with a Markov head: besides, the logits that are `conditioned` on the tokens of the text, and the `confidence`
    [ANCHORS, BLOCK], in logits too."""
    model, given = _made(dspark.DSparkDraftModel, DSparkSpeculatorConfig, layer, seed, {"markov_rank": 4, **options})
    seen: dict[str, Tensor] = {}

    def noted(logits: Tensor, targets: Tensor, confidence: Tensor | None, *_: Any, **__: Any) -> tuple[Any, Any]:
        seen["conditioned"] = logits[0].view(ANCHORS, BLOCK, -1)
        if confidence is not None:
            seen["confidence"] = confidence[0].view(ANCHORS, BLOCK)
        return None, None

    original, dspark.compute_metrics = dspark.compute_metrics, noted
    state = torch.get_rng_state()
    _, blocks = _forward(model, given)
    torch.set_rng_state(state)
    with torch.no_grad():
        model(**_arguments(given), max_anchors=ANCHORS)
    dspark.compute_metrics = original
    save(folder, model, {**given, **blocks, **{name: each.clone() for name, each in seen.items()}})


def _made(model: Any, config: Any, layer: PretrainedConfig, seed: int, options: dict[str, Any]) -> tuple[Any, Any]:
    """A model with its inputs: those of `inputs`, and the embeddings, and LM head, that it shares with its target."""
    torch.manual_seed(seed)
    options = {
        "draft_vocab_size": DRAFT_VOCAB,
        "aux_hidden_state_layer_ids": [1, 3, 5],
        "mask_token_id": VOCAB - 1,
        "block_size": BLOCK,
        **options,
    }
    made = filled(built(model, config, layer, options, BLOCK))
    shared = {"embeddings": made.embed_tokens.weight.detach().clone()}
    if not made.use_draft_vocab:
        shared["lm_head"] = made.lm_head.weight.detach().clone()
    return made, {**inputs(made, LENGTH), **shared}


def _arguments(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        "hidden_states": given["features"][None],
        "input_ids": given["tokens"][None],
        "loss_mask": torch.ones(1, LENGTH),
        "verifier_last_hidden_states": torch.zeros(1, LENGTH, HIDDEN),
        "document_ids": torch.zeros(1, LENGTH, dtype=torch.long),
    }


def _forward(model: Any, given: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    with torch.no_grad():
        hidden, logits, _, _, indices = model._backbone_forward(**_arguments(given), max_anchors=ANCHORS)
    hidden = hidden[0].view(ANCHORS, BLOCK, -1)
    return hidden, {"logits": logits[0].view(ANCHORS, BLOCK, -1).clone(), "anchors": indices[::BLOCK].clone()}


Writer = Callable[[Path], None]


def _two(**options: Any) -> PretrainedConfig:
    return qwen3(num_hidden_layers=2, **options)


def _writer(write: Callable[..., None], seed: int, layer: PretrainedConfig | None = None, **options: Any) -> Writer:
    return partial(write, layer=layer or _two(), seed=seed, **options)


BLOCKS: Final[dict[str, Writer]] = {
    "dflash": _writer(write_dflash, 31),
    "dflash-whole-vocabulary": _writer(write_dflash, 32, draft_vocab_size=VOCAB),
    "dflash-windows": _writer(write_dflash, 33, _two(**_WINDOWS)),
    "dflash-windows-both-ways": _writer(write_dflash, 34, _two(**_WINDOWS), sliding_window_non_causal=True),
    "dflash-from-anchor": _writer(write_dflash, 35, sample_from_anchor=True, aux_hidden_state_layer_ids=[2, 6]),
    "dflash2": _writer(write_dflash2, 41),
    "dflash2-three-taps": _writer(write_dflash2, 42, conv_kernel_size=3, conv_group_size=8, sample_from_anchor=True),
    "dflash2-taught": _writer(
        write_taught,
        43,
        _two(**{**_WINDOWS, "sliding_window": 1}),
        sample_from_anchor=True,
        sliding_window_non_causal=False,
    ),
    "dspark": _writer(write_dspark, 51),
    "dspark-whole-vocabulary": _writer(write_dspark, 52, draft_vocab_size=VOCAB, sample_from_anchor=False),
    "dspark-gated": _writer(write_dspark, 53, markov_head_type="gated", confidence_head_with_markov=False),
    "dspark-rnn": _writer(write_dspark, 54, markov_head_type="rnn", enable_confidence_head=False),
}
