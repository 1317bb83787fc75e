"""KV is written where it is told to and moved whole."""

from __future__ import annotations

import pytest
import torch

from specsplit.model import Geometry, KVCache


def cache(num_slots: int = 8) -> KVCache:
    return KVCache(
        Geometry.uniform(num_layers=2, num_heads=4, kv_heads=2, head_dim=3),
        num_slots,
        torch.float32,
        torch.device("cpu"),
    )


def test_a_write_reaches_one_layer_and_the_named_slots_only() -> None:
    kv = cache()
    key, value = torch.randn(2, 2, 3), torch.randn(2, 2, 3)
    kv.write(1, torch.tensor([5, 2]), key, value)
    assert torch.equal(kv.data[1, 0, [5, 2]], key)
    assert torch.equal(kv.data[1, 1, [5, 2]], value)
    assert not kv.data[0].any()
    assert not kv.data[1, :, [0, 1, 3, 4, 6, 7]].any()


def test_slots_of_one_layer_after_the_other_are_read_into_the_same_memory() -> None:
    """For fresh memory of some megabytes the system would be asked in every layer of every step."""
    kv = cache()
    kv.data.normal_()
    data, places = kv.data.clone(), set[tuple[int, int]]()
    for slots in (torch.tensor([5, 2, 7]), torch.tensor([1]), torch.tensor([6, 6])):
        for layer in range(2):
            with torch.inference_mode(layer == 0):
                keys, values = kv.read(layer, slots)
            assert torch.equal(keys, data[layer, 0, slots]) and torch.equal(values, data[layer, 1, slots])
            places.add((keys.data_ptr(), values.data_ptr()))
    assert len(places) == 1
    assert torch.equal(kv.data, data)
    keys, _ = kv.read(0, torch.arange(8))
    assert torch.equal(keys, data[0, 0])


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
    assert {layer.pattern.group for layer in Geometry.uniform(2, num_heads=6, kv_heads=2, head_dim=3).layers} == {3}


@pytest.mark.parametrize(("stored", "largest"), [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)])
def test_kv_of_8_bits_is_rounded_once_and_what_is_too_large_is_the_largest_number(
    stored: torch.dtype, largest: float
) -> None:
    kv = KVCache(Geometry.uniform(1, 2, 1, 4), 8, torch.bfloat16, torch.device("cpu"), stored)
    numbers = torch.tensor([[[1.0, -0.3, 1e9, -1e9]], [[0.0, 3.3, 0.07, -5.0]]], dtype=torch.bfloat16)
    slots = torch.tensor([6, 1])
    kv.write(0, slots, numbers, -numbers)
    rounded = numbers.clamp(-largest, largest).to(stored).to(torch.bfloat16)
    assert rounded[0, 0, 2:].tolist() == [largest, -largest]
    for read in (kv.read(0, slots), [each[slots] for each in kv.read(0, slice(None))]):
        assert {each.dtype for each in read} == {torch.bfloat16}
        assert torch.equal(torch.stack(tuple(read)), torch.stack((rounded, -rounded)))
    kv.move(slots, torch.tensor([0, 6]))
    assert torch.equal(torch.stack(kv.read(0, torch.tensor([0, 6]))), torch.stack((rounded, -rounded)))
    assert kv.nbytes * 2 == KVCache(Geometry.uniform(1, 2, 1, 4), 8, torch.bfloat16, torch.device("cpu")).nbytes


def test_kv_of_the_models_own_type_that_is_one_run_is_read_where_it_is() -> None:
    kv = cache()
    assert [seen.data_ptr() for seen in kv.read(1, slice(2, 5))] == [kv.data[1, i, 2].data_ptr() for i in (0, 1)]
