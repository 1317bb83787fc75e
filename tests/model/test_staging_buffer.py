"""What is uploaded by way of a staging buffer is on the device behind it, whatever it is, in one copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from specsplit.model.tensors.staging_buffer import StagingBuffer
from tests.support.copies import counted_copies

CPU = torch.device("cpu")
TYPES = [np.int64, np.int32, np.float32, np.float64, np.bool_, np.uint8]
SHAPES = arrays.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=9)
contents = st.lists(st.sampled_from(TYPES).flatmap(lambda dtype: arrays.arrays(dtype, SHAPES)), max_size=6)


@given(st.lists(contents, min_size=1, max_size=5))
def test_arrays_of_any_type_are_there_behind_one_copy_until_the_batch_after_the_next(
    batches: list[list[NDArray[Any]]],
) -> None:
    buffer = StagingBuffer(CPU, nbytes=8192)
    last: list[tuple[NDArray[Any], torch.Tensor]] = []
    for arrays_of_step in batches:
        with counted_copies() as found:
            upload = buffer.begin()
            sent = [(array.copy(), upload(array)) for array in arrays_of_step]
            buffer.send()
        assert found["copies"] == any(array.size for array in arrays_of_step)
        for array, tensor in (*last, *sent):
            np.testing.assert_array_equal(tensor.numpy(), array)
            assert tensor.numpy().dtype == array.dtype
            assert tensor.data_ptr() % 16 == 0
        last = sent


def test_a_buffer_that_needs_more_room_makes_it_and_has_it_later() -> None:
    buffer, wide = StagingBuffer(CPU, nbytes=64), np.arange(100)
    for copies in (2, 2, 1, 1):  # either half has to learn it
        with counted_copies() as found:
            upload = buffer.begin()
            first, second = upload(np.arange(3)), upload(wide)
            buffer.send()
        assert first.tolist() == [0, 1, 2] and second.tolist() == wide.tolist()
        assert found["copies"] == copies


def test_an_array_that_is_not_contiguous_arrives_as_it_is() -> None:
    buffer = StagingBuffer(CPU)
    upload = buffer.begin()
    columns = np.arange(12).reshape(3, 4)[:, ::2]
    tensor = upload(columns)
    buffer.send()
    assert tensor.tolist() == columns.tolist()
