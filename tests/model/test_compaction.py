"""The kernel that moves KV leaves what the host's own compaction leaves: run by triton's interpreter, on the CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from tests.support.kernels import CPU, Walks, check_compaction, interpreted, walks

pytestmark = interpreted


@pytest.mark.parametrize(("page_size", "dtype"), [(1, torch.float16), (16, torch.float32), (4, torch.bfloat16)])
def test_kv_of_accepted_nodes_moves_to_the_front_of_its_tree(page_size: int, dtype: torch.dtype) -> None:
    @given(walks())
    @settings(max_examples=15)
    def law(given_walks: Walks) -> None:
        check_compaction(given_walks, page_size, dtype, CPU)

    law()
