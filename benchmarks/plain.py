"""transformers' own `generate`, the ways a user would call it, on the same weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from specsplit.model.inflate import inflate

PROMPT_LOOKUP = 10
Generate = Callable[[list[int], int, float, int], tuple[list[int], float]]
"""(prompt, new tokens, temperature, seed) -> (tokens, seconds)."""


def _load(folder: Path, layers: int) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if layers:
        inflate(model, layers)
    model.generation_config.eos_token_id = None  # as with ignore_eos: every way writes the same number of tokens
    return model


def _caller(model: LlamaForCausalLM, threads: int, **how: object) -> Generate:
    def call(prompt: list[int], new: int, temperature: float, seed: int) -> tuple[list[int], float]:
        sampling = (
            {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
            if temperature
            else {"do_sample": False}
        )
        rows = torch.tensor([prompt])
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        started = time.perf_counter()
        out = model.generate(  # pyright: ignore[reportAttributeAccessIssue] (its protocol lags behind its classes)
            rows, attention_mask=torch.ones_like(rows), max_new_tokens=new, **sampling, **how
        )
        seconds = time.perf_counter() - started
        torch.set_num_threads(1)
        return out[0, len(prompt) :].tolist(), seconds

    return call


def generators(target: Path, draft: Path | None, layers: int) -> dict[str, Generate]:
    """Every way, by name; the target inflated to `layers` (0: as it is), assisted by `draft` if there is one."""
    model = _load(target, layers)
    assisted = (
        {} if draft is None else {"generate, assistant_model": _caller(model, 1, assistant_model=_load(draft, 0))}
    )
    return {
        "generate, 1 thread": _caller(model, 1),
        "generate, 2 threads": _caller(model, 2),
        **assisted,
        "generate, prompt lookup": _caller(model, 1, prompt_lookup_num_tokens=PROMPT_LOOKUP),
    }
