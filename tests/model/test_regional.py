"""Compiled decoder layers: the same numbers, compiled once for all layers and all sizes, hidden states still there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.layers.capture import decoder_layers
from tests.support.rounding import assert_same_sums


def rows(lm: CausalLM, nodes: int) -> list[Row]:
    """Two trees of a root and its children."""
    tables = [PageTable(lm.pool) for _ in range(2)]
    for table in tables:
        table.reserve(nodes + 4)
    return [Row.tree([3] * nodes, [-1] + [0] * (nodes - 1), table.upto(nodes + 4)) for table in tables]


def test_compiled_layers_compute_what_they_did_and_still_give_hidden_states(folders: dict[str, Path]) -> None:
    compiled: list[int] = []

    def backend(module: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        compiled.append(len(module.graph.nodes))
        return module

    lm = CausalLM.load(folders["llama"], num_pages=64, page_size=4, cpu_layers=False)
    works = [rows(lm, nodes) for nodes in (9, 2, 1, 5)]
    expected = [lm.forward_capturing(work, {1, 3}) for work in works]
    lm.compile_layers(backend)
    found = [lm.forward_capturing(works[0], {1, 3})]
    count, layers = len(compiled), decoder_layers(lm.model)
    assert layers is not None and 2 <= count < 2 * len(layers), "before attention and behind it, not for every layer"
    found += [lm.forward_capturing(work, {1, 3}) for work in works[1:]]
    assert len(compiled) == count, "not for every size"
    for (logits, states), (others, other_states) in zip(found, expected, strict=True):
        assert_same_sums(logits, others)
        for layer in (1, 3):
            assert_same_sums(states[layer], other_states[layer])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="compiling kernels takes half a minute on a CPU; needs a GPU")
def test_inductor_compiles_them_for_a_gpu(folders: dict[str, Path]) -> None:
    lm = CausalLM.load(folders["llama"], num_pages=64, page_size=4, dtype="bfloat16", device="cuda")
    works = [rows(lm, nodes) for nodes in (9, 2, 1, 5)]
    expected = [lm.forward(work) for work in works]
    lm.compile_layers()
    found = [lm.forward(work) for work in works]
    torch.testing.assert_close(found, expected, atol=5e-2, rtol=5e-2)
