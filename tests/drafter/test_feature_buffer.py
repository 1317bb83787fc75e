"""Features of one session before they are read: finite as they were sent, and finite still in the numbers of the head."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specsplit.errors import InvalidRequest
from specsplit.features import FeatureFormat, FeatureLayout, Features
from specsplit.model.tensors.feature_codec import encode
from specsplit_drafter.drafts.feature_buffer import FeatureBuffer


def sent(rows: Tensor, layout: FeatureLayout) -> Features:
    return Features(0, len(rows), *encode(rows, layout))


@pytest.mark.parametrize("form", [FeatureFormat.FLOAT32, FeatureFormat.BFLOAT16, FeatureFormat.FP8_E4M3])
def test_what_the_head_cannot_hold_becomes_its_largest_number(form: FeatureFormat) -> None:
    layout, buffer = FeatureLayout(2, form), FeatureBuffer(torch.float16)
    buffer.add(sent(torch.tensor([[1e6, -1e6], [1.0, 2.0]]), layout), layout, root=2)
    (rows,) = buffer.take(2)
    largest = torch.finfo(torch.float16).max
    assert rows.dtype is torch.float16
    assert rows.tolist() == [[largest, -largest], [1.0, 2.0]]


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_refused_and_not_taken(number: float) -> None:
    layout, buffer = FeatureLayout(2), FeatureBuffer(torch.float16)
    data = torch.tensor([[1.0, number]]).numpy().tobytes()
    with pytest.raises(InvalidRequest, match=r"features\.data: holds NaN or infinity"):
        buffer.add(Features(0, 1, data), layout, root=1)
    assert buffer.arrived == 0
