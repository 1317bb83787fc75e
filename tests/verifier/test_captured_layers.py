"""Which hidden states graphs leave for heads follows from a setting, for targets of any depth."""

from __future__ import annotations

from pathlib import Path

import pytest

from specsplit.errors import InvalidRequest, LoadError
from specsplit.features import LAST
from specsplit.model import CausalLM
from specsplit.settings import VerifierSettings
from specsplit_verifier.target.split import captured_layers
from tests.support.toys import random_target


def test_layers_are_those_of_usual_heads_or_those_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = CausalLM.load(random_target(tmp_path, 16), num_pages=8, page_size=4)
    depth = target.model.config.num_hidden_layers
    assert captured_layers("none", target) == frozenset()
    assert captured_layers(f"0,{depth},-1", target) == {0, depth, LAST}
    with pytest.raises(LoadError, match=f"cuda_graph_layers is 0,{depth + 1}: hidden states of layer {depth + 1}"):
        captured_layers(f"0,{depth + 1}", target)
    for layers, usual in ((1, {0, LAST}), (2, {1, 2, LAST}), (4, {1, 2, LAST}), (32, {2, 16, 29, LAST})):
        monkeypatch.setattr(target.model.config, "num_hidden_layers", layers)
        assert captured_layers("auto", target) == usual, "what a shallow target lacks is left out"


@pytest.mark.parametrize("wrong", ["2,", "all", "-", "1;2", ""])
def test_a_setting_that_names_no_layers_is_refused(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cuda_graph_layers"):
        VerifierSettings(model=tmp_path, cuda_graph_layers=wrong)
