from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from benchmarks.acceptance.treecache import TreeCache
from scripts.pocket.target import config
from tests.support.rounding import assert_same_sums


def test_tree_logits_are_those_of_the_model_on_each_path(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(config(0, hidden=32, layers=2, heads=4, kv_heads=2, mlp=64)).eval()
    model.save_pretrained(tmp_path)
    tokens = torch.randint(0, 2048, (20,))
    cache = TreeCache(tmp_path)
    cache.read(tokens)
    for root in (15, 15, 9):
        cache.reset(root)
        logits = [
            *cache.extend([int(tokens[root])], [-1]),
            *cache.extend([5, 6, 7, 8], [0, 0, 1, 2]),
            *cache.extend([9], [3]),
        ]
        for path, row in zip(([], [5], [6], [5, 7], [6, 8], [5, 7, 9]), logits, strict=True):
            with torch.no_grad():
                wanted = model(input_ids=torch.tensor([tokens[: root + 1].tolist() + path])).logits[0, -1]
            assert_same_sums(row, wanted)
