"""What comes from a device comes whole."""

from __future__ import annotations

import numpy as np
import torch

from specsplit.model.transfer import on_host, packed, unpacked


def test_tensors_of_several_types_come_as_they_are() -> None:
    tensors = [
        torch.arange(6).view(2, 3),
        torch.tensor([[0.1, -torch.inf]], dtype=torch.float64),
        torch.tensor([True, False, True]),
        torch.empty(0, 4),
    ]
    for arrays in (on_host(tensors), unpacked(packed(tensors).numpy(), tensors)):
        for array, tensor in zip(arrays, tensors, strict=True):
            np.testing.assert_array_equal(array, tensor.numpy())
            assert array.dtype == tensor.numpy().dtype
    assert on_host([]) == []
