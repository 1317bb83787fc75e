"""The kernel that moves KV leaves what the host's own compaction leaves: run by triton's interpreter, on the CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from tests.support.kernels import CPU, Walks, check_compaction, interpreted, walks

pytestmark = interpreted


@pytest.mark.parametrize(
    ("page_size", "dtype", "kept"),
    [
        (1, torch.float16, "auto"),
        (16, torch.float32, "auto"),
        (4, torch.bfloat16, "auto"),
        (4, torch.bfloat16, "fp8_e4m3"),
    ],
)
def test_kv_of_accepted_nodes_moves_to_the_front_of_its_tree(page_size: int, dtype: torch.dtype, kept: str) -> None:
    @given(walks())
    @settings(max_examples=15)
    def law(given_walks: Walks) -> None:
        check_compaction(given_walks, page_size, dtype, CPU, kept)

    law()
