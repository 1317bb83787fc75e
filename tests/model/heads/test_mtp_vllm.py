"""MTP layers against what vLLM's own gave for the same weights, tokens and states (tests/data/mtp)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specsplit.model import Row, RowPages
from specsplit.model.heads import HeadRunner, load_head
from tests.model.heads.mtp_recorded import RECORDED, tokens_and_states
from tests.model.heads.published import write
from tests.support.rounding import assert_same_sums

DATA = Path(__file__).parents[2] / "data" / "mtp"


@pytest.mark.parametrize("name", RECORDED)
def test_logits_and_the_next_states_are_those_of_vllm(tmp_path: Path, name: str) -> None:
    recorded, record = RECORDED[name](), load_file(DATA / f"{name}.safetensors")
    tokens, states = record["tokens"], record["states"]
    assert torch.equal(tokens, tokens_and_states()[0])
    folder = write(tmp_path, recorded.facts, recorded.tensors)
    head = load_head(folder, folder, recorded.kind)
    runner = HeadRunner(head, 0, 16)
    rows = [Row.chunk(tokens.numpy(), RowPages.alone(runner.pool.allocate(len(tokens)), len(tokens)))]
    hidden, following = runner.forward(rows, head.fuse(states))
    assert_same_sums(head.logits(0, hidden), record["logits"])
    assert_same_sums(following, record["next"])


def test_all_that_is_recorded_is_compared() -> None:
    assert {path.stem for path in DATA.glob("*.safetensors")} == set(RECORDED)
