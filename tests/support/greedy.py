"""What transformers writes by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig


def greedy_texts(folder: Path, prompts: Sequence[list[int]], new_tokens: int) -> list[list[int]]:
    """Prompts with the tokens, in float32, that the model in a folder takes for the likeliest behind them. It ends at no token."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = GenerationConfig(do_sample=False, max_new_tokens=new_tokens, eos_token_id=None, pad_token_id=0)
    with torch.inference_mode():
        return [
            model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)[0].tolist()  # pyright: ignore[reportAttributeAccessIssue]
            for ids in map(torch.tensor, ([prompt] for prompt in prompts))
        ]
