"""transformers' own `generate`, the ways a user would call it, on the same weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaForCausalLM

from benchmarks.account import Account, ForwardClock
from specsplit.model.layers.inflate import inflate

PROMPT_LOOKUP = 10
Generate = Callable[[list[int], int, float, int], tuple[list[int], float, Account]]
"""(prompt, new tokens, temperature, seed) -> (tokens, seconds, where these went)."""


def _load(folder: Path, layers: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    if layers:
        inflate(model, layers)
    nn.Module.to(model, torch.device(device))
    model.generation_config.eos_token_id = None  # as with ignore_eos: every way writes the same number of tokens
    return model


class _Clocks:
    """The clocks of a target and of the model that drafts for it, if there is one."""

    def __init__(self, target: ForwardClock, draft: ForwardClock | None = None) -> None:
        self._target = target
        self._draft = draft

    def read(self) -> Account:
        """Sums since the models were loaded."""
        return Account(self._target.calls, self._target.seconds, 0.0 if self._draft is None else self._draft.seconds)


def _caller(model: LlamaForCausalLM, clocks: _Clocks, threads: int, **how: object) -> Generate:
    def call(prompt: list[int], new: int, temperature: float, seed: int) -> tuple[list[int], float, Account]:
        sampling = (
            {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
            if temperature
            else {"do_sample": False}
        )
        rows = torch.tensor([prompt], device=model.device)
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        before = clocks.read()
        started = time.perf_counter()
        out = model.generate(  # pyright: ignore[reportAttributeAccessIssue] (its protocol lags behind its classes)
            rows, attention_mask=torch.ones_like(rows), max_new_tokens=new, **sampling, **how
        )
        tokens = out[0, len(prompt) :].tolist()  # waits for a device
        seconds = time.perf_counter() - started
        torch.set_num_threads(1)
        return tokens, seconds, clocks.read() - before

    return call


def generators(target: Path, draft: Path | None, layers: int) -> dict[str, Generate]:
    """Every way, by name; the target inflated to `layers` (0: as it is), assisted by `draft` if there is one."""
    model = _load(target, layers)
    clock = ForwardClock(model)
    alone = _Clocks(clock)
    return {
        "generate, 1 thread": _caller(model, alone, 1),
        "generate, 2 threads": _caller(model, alone, 2),
        **({} if draft is None else {"generate, assistant_model": _assisted(model, clock, _load(draft, 0))}),
        "generate, prompt lookup": _caller(model, alone, 1, prompt_lookup_num_tokens=PROMPT_LOOKUP),
    }


def _assisted(model: LlamaForCausalLM, clock: ForwardClock, draft: LlamaForCausalLM) -> Generate:
    return _caller(model, _Clocks(clock, ForwardClock(draft)), 1, assistant_model=draft)


def generators_on(device: str, dtype: torch.dtype, target: Path, draft: Path, layers: int) -> dict[str, Generate]:
    """The ways of `generators` on a device. Accounts are of the host's time alone: a forward returns before the device is done."""
    model = _load(target, layers, dtype, device)
    clock = ForwardClock(model)
    alone = _Clocks(clock)
    return {
        "generate": _caller(model, alone, 1),
        "generate, assistant_model": _assisted(model, clock, _load(draft, 0, dtype, device)),
        "generate, prompt lookup": _caller(model, alone, 1, prompt_lookup_num_tokens=PROMPT_LOOKUP),
    }
