"""What comes from a device comes whole."""

from __future__ import annotations

import numpy as np
import torch

from specsplit.model.tensors.transfer import HostCopy, on_host, packed, to_host, unpacked


def test_tensors_of_several_types_come_as_they_are() -> None:
    tensors = [
        torch.arange(6).view(2, 3),
        torch.tensor([[0.1, -torch.inf]], dtype=torch.float64),
        torch.tensor([True, False, True]),
        torch.empty(0, 4),
        torch.arange(12.0).view(3, 4)[:, :2],
    ]
    for arrays in (on_host(tensors), unpacked(packed(tensors).numpy(), tensors)):
        for array, tensor in zip(arrays, tensors, strict=True):
            np.testing.assert_array_equal(array, tensor.numpy())
            assert array.dtype == tensor.numpy().dtype
    assert on_host([]) == []


class Pending:
    """An event that tells how often somebody waited for it."""

    waits = 0

    def synchronize(self) -> None:
        self.waits += 1


def test_a_copy_is_waited_for_when_it_is_read_and_no_sooner() -> None:
    event = Pending()
    copy = HostCopy(lambda: [np.arange(event.waits)], event)
    assert event.waits == 0
    (array,) = copy.arrays()
    assert array.tolist() == [0], "it was read behind the event"


def test_on_the_cpu_nothing_is_copied() -> None:
    tensor = torch.zeros(3)
    (array,) = to_host([tensor], aside=True).arrays()
    tensor[1] = 2.0
    assert array.tolist() == [0, 2, 0]
