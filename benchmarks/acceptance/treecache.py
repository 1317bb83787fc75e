"""A transformers model over one committed sequence and a token tree behind it, with plain tensors: no specsplit engine involved.

Legend: S committed tokens, N tree tokens so far (root included, index 0), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache


class TreeCache:
    """KV of a sequence [S]; `reset` cuts it and puts a tree behind, `extend` adds tree tokens and returns their logits."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._cache = DynamicCache(config=self._model.config)
        self._prefix = 0
        self._depths: list[int] = []
        self._sees = torch.zeros(0, 0, dtype=torch.bool)

    @torch.inference_mode()
    def read(self, tokens: Tensor) -> None:
        """Start over with the committed sequence `tokens` [S]."""
        self._cache = DynamicCache(config=self._model.config)
        self._model(input_ids=tokens[None], past_key_values=self._cache, logits_to_keep=1)

    def reset(self, root: int) -> None:
        """Keep the committed tokens before index `root`, drop every later one and the tree. `root` must not rise between reads."""
        surplus = self._cache.get_seq_length() - root
        if surplus:
            self._cache.crop(-surplus)
        self._prefix, self._depths = root, []
        self._sees = torch.zeros(0, 0, dtype=torch.bool)

    @torch.inference_mode()
    def extend(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Logits float32 [n, V] of n new tree tokens; `parents` are tree indices (-1 for the root, which comes first)."""
        old, new = len(self._depths), len(tokens)
        sees = torch.zeros(old + new, old + new, dtype=torch.bool)
        sees[:old, :old] = self._sees
        for index, parent in enumerate(parents, start=old):
            if parent >= 0:
                sees[index] = sees[parent]
            sees[index, index] = True
            self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
        self._sees = sees
        mask = torch.cat([torch.ones(new, self._prefix, dtype=torch.bool), sees[old:]], dim=1)
        positions = torch.tensor(self._depths[old:]) + self._prefix
        out = self._model(
            input_ids=torch.tensor([list(tokens)]),
            attention_mask=mask[None, None],
            position_ids=positions[None],
            past_key_values=self._cache,
        )
        return out.logits[0].float()
