"""Writes speculators_eagle3.safetensors: an EAGLE-3 head as vllm-project/speculators saves it, and the logits that its own model gives.

Run in an environment that has `speculators` too (0.9.0 wrote the file): python -m tests.model.heads.record_speculators
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

RECORD = Path(__file__).with_name("speculators_eagle3.safetensors")
VOCAB, DRAFT_VOCAB, HIDDEN, LENGTH, STEPS = 61, 20, 16, 8, 3


def main() -> None:
    torch.manual_seed(11)
    model = build()
    inputs = {
        "input.tokens": torch.randint(0, VOCAB, (LENGTH,)),
        "input.features": torch.randn(LENGTH, 3 * HIDDEN),
    }
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        weights = load_file(Path(folder) / "model.safetensors")
        config = json.loads((Path(folder) / "config.json").read_text())
    logits = {f"logits.{step}": each for step, each in enumerate(run(model, inputs))}
    save_file({**weights, **inputs, **logits}, RECORD, metadata={"config.json": json.dumps(config)})


def build() -> Any:
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3SpeculatorConfig
    from speculators.models.eagle3.core import Eagle3DraftModel
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import Qwen3Config

    layer = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    layer._attn_implementation = "eager"  # pyright: ignore[reportPrivateUsage]
    model = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=layer,
            draft_vocab_size=DRAFT_VOCAB,
            norm_before_residual=True,
            eagle_aux_hidden_state_layer_ids=[1, 3, 5],
            speculators_config=SpeculatorsConfig(
                algorithm="eagle3",
                proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
                default_proposal_method="greedy",
                verifier=VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"]),
            ),
        )
    )
    target_ids = (torch.arange(DRAFT_VOCAB) * 3 + 1).remainder(VOCAB)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                1 + 0.3 * torch.randn_like(parameter) if parameter.ndim == 1 else 0.3 * torch.randn_like(parameter)
            )
        model.d2t.copy_(target_ids - torch.arange(DRAFT_VOCAB))
        model.t2d.zero_().index_fill_(0, target_ids, True)
    return model.float().eval()


def run(model: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    """[step]: logits [LENGTH, DRAFT_VOCAB], step s being s tokens behind the last true feature."""
    from speculators.models.eagle3 import core

    seen: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: seen.append(output[0].clone()))
    model._create_mask_fn = lambda *args, **kwargs: core.create_float_mask(*args, **kwargs, dtype=torch.float32)
    with torch.no_grad():
        model(
            hidden_states=inputs["input.features"][None],
            input_ids=inputs["input.tokens"][None],
            document_ids=torch.zeros(1, LENGTH, dtype=torch.long),
            ttt_steps=STEPS,
        )
    return seen


if __name__ == "__main__":
    main()
