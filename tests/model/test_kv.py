"""KV is written where it is told to and moved whole."""

from __future__ import annotations

import torch

from specsplit.model import Geometry, KVCache


def cache(num_slots: int = 8) -> KVCache:
    return KVCache(
        Geometry(num_layers=2, num_heads=4, kv_heads=2, head_dim=3), num_slots, torch.float32, torch.device("cpu")
    )


def test_a_write_reaches_one_layer_and_the_named_slots_only() -> None:
    kv = cache()
    key, value = torch.randn(2, 2, 3), torch.randn(2, 2, 3)
    kv.write(1, torch.tensor([5, 2]), key, value)
    assert torch.equal(kv.data[1, 0, [5, 2]], key)
    assert torch.equal(kv.data[1, 1, [5, 2]], value)
    assert not kv.data[0].any()
    assert not kv.data[1, :, [0, 1, 3, 4, 6, 7]].any()


def test_overlapping_moves_read_before_they_write() -> None:
    kv = cache()
    kv.data.normal_()
    before = kv.data.clone()
    kv.move(torch.tensor([1, 3, 4]), torch.tensor([0, 1, 3]))
    assert torch.equal(kv.data[:, :, [0, 1, 3]], before[:, :, [1, 3, 4]])
    assert torch.equal(kv.data[:, :, [2, 4, 5, 6, 7]], before[:, :, [2, 4, 5, 6, 7]])


def test_moving_nothing_changes_nothing() -> None:
    kv = cache()
    kv.move(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    assert not kv.data.any()


def test_query_heads_per_kv_head_are_derived() -> None:
    assert Geometry(num_layers=2, num_heads=6, kv_heads=2, head_dim=3).group == 3
