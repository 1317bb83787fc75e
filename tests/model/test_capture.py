"""The hidden states beside the logits are transformers' own, of exactly the layers asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from specsplit.errors import Incompatible
from specsplit.features import LAST
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.layers.capture import Hidden
from tests.support.rounding import assert_same_sums

TOKENS = [(29 * i + 3) % 97 for i in range(12)]
PARENTS = [-1, 0, 0, 1]


def own_states(model: PreTrainedModel, tokens: list[int]) -> dict[int, torch.Tensor]:
    """By layer, [T, h]. transformers norms the last of its list, so the last decoder layer's own output is no part of it."""
    with torch.inference_mode():
        states = model(input_ids=torch.tensor([tokens]), output_hidden_states=True).hidden_states
    first = int(model.config.model_type in ("mamba", "mamba2"))  # whose list lacks what goes into the first layer
    return {**{layer: state[0] for layer, state in enumerate(states[:-1], first)}, LAST: states[-1][0]}


def test_every_layer_of_a_chunk_is_what_transformers_computes(pair: tuple[CausalLM, PreTrainedModel]) -> None:
    ours, theirs = pair
    expected = own_states(theirs, TOKENS)
    table = PageTable(ours.pool)
    table.reserve(12)
    # In two forwards: the second chunk sees the first through the KV.
    parts: list[Hidden] = []
    for a, b in ((0, 7), (7, 12)):
        chunk = Row.chunk(TOKENS[a:b], table.upto(b))
        parts.append(ours.forward_capturing([chunk], tuple(expected))[1])
        ours.keep_states([(chunk, b - a - 1)])
    table.release()
    for layer, states in expected.items():
        assert_same_sums(torch.cat([part[layer] for part in parts]), states)


def test_nodes_of_a_tree_have_the_states_of_their_paths(pair: tuple[CausalLM, PreTrainedModel]) -> None:
    ours, theirs = pair
    table = PageTable(ours.pool)
    table.reserve(12)
    prefix = Row.chunk(TOKENS[:8], table.upto(8))
    ours.forward([prefix])
    ours.keep_states([(prefix, 7)])
    _, hidden = ours.forward_capturing([Row.tree(TOKENS[8:], PARENTS, table.upto(12))], (1, LAST))
    table.release()
    for node, path in enumerate(([8], [8, 9], [8, 10], [8, 9, 11])):
        expected = own_states(theirs, [*TOKENS[:8], *(TOKENS[i] for i in path)])
        for layer in (1, LAST):
            assert_same_sums(hidden[layer][node], expected[layer][-1])


def test_the_last_layers_output_becomes_last_behind_the_final_norm(llama: CausalLM) -> None:
    table = PageTable(llama.pool)
    table.reserve(12)
    _, hidden = llama.forward_capturing([Row.chunk(TOKENS, table.upto(12))], (3, LAST))
    with torch.inference_mode():
        assert_same_sums(llama.model.model.norm(hidden[3]), hidden[LAST])


def test_an_inflated_model_has_the_same_states(folders: dict[str, Path]) -> None:
    plain, deep = (CausalLM.load(folders["qwen3"], num_pages=8, page_size=4, inflate_layers=n) for n in (0, 8))
    states: list[dict[int, torch.Tensor]] = []
    for lm in (plain, deep):
        table = PageTable(lm.pool)
        table.reserve(12)
        states.append(lm.forward_capturing([Row.chunk(TOKENS, table.upto(12))], (0, 2, 3, LAST))[1])
    assert states[0].keys() == states[1].keys()
    for layer, expected in states[0].items():
        assert torch.equal(states[1][layer], expected)


def test_only_what_was_asked_for_is_kept_and_no_hook_stays(llama: CausalLM) -> None:
    table = PageTable(llama.pool)
    table.reserve(12)
    row = Row.chunk(TOKENS, table.upto(12), logits_at=[11])
    logits, hidden = llama.forward_capturing([row], (2,))
    assert set(hidden) == {2}
    hidden.clear()
    plain, nothing = llama.forward_capturing([row], ())
    assert nothing == hidden == {} and torch.equal(plain, logits)


def test_no_rows_have_the_width_and_dtype_of_the_model(folders: dict[str, Path]) -> None:
    lm = CausalLM.load(folders["llama"], num_pages=16, page_size=4, dtype="bfloat16")
    logits, hidden = lm.forward_capturing([], (1, LAST))
    assert logits.shape == (0, 97)
    assert {layer: (tuple(state.shape), state.dtype) for layer, state in hidden.items()} == {
        1: ((0, 32), torch.bfloat16),
        LAST: ((0, 32), torch.bfloat16),
    }


@pytest.mark.parametrize("layer", [4, -2, 99])
def test_a_layer_that_is_not_there_is_refused(llama: CausalLM, layer: int) -> None:
    table = PageTable(llama.pool)
    table.reserve(12)
    with pytest.raises(
        Incompatible, match=rf"layer {layer} wanted; the target has 3 decoder layers: expected 0 .*1\.\.3"
    ):
        llama.forward_capturing([Row.chunk(TOKENS, table.upto(12))], (1, layer))
