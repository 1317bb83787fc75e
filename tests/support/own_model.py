"""A model as transformers has it, to compare ours with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def own_model(folder: Path) -> Any:
    """In float32. With soft caps it computes by eager attention: SDPA has none, and transformers 5.17 takes it all the same."""
    capped = getattr(AutoConfig.from_pretrained(folder), "attn_logit_softcapping", None) is not None
    eager = {"attn_implementation": "eager"} if capped else {}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **eager).eval()
