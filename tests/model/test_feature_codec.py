"""Features as bytes: what comes out is what went in, within what the format can hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest
from specsplit.features import FeatureFormat, FeatureLayout, Features
from specsplit.model.tensors.feature_codec import decode, encode, format_of

FORMATS = [FeatureFormat.FLOAT32, FeatureFormat.BFLOAT16, FeatureFormat.FLOAT16, FeatureFormat.FP8_E4M3]
RELATIVE = {
    FeatureFormat.FLOAT32: 0.0,
    FeatureFormat.BFLOAT16: 2**-8,
    FeatureFormat.FLOAT16: 2**-11,
    FeatureFormat.FP8_E4M3: 2**-4,
}
"""Half a unit in the last place, as a share of the number."""


def there_and_back(rows: torch.Tensor, layout: FeatureLayout) -> torch.Tensor:
    data, scales = encode(rows, layout)
    return decode(Features(0, len(rows), data, scales), layout, dtype=torch.float32, device="cpu")


@given(st.sampled_from(FORMATS), st.integers(0, 9), st.integers(0, 17), st.integers(0, 2**31), st.floats(-6, 6))
def test_what_comes_out_is_what_went_in_within_half_a_unit(
    name: FeatureFormat, count: int, width: int, seed: int, exponent: float
) -> None:
    rows = torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) * 10**exponent
    if name is FeatureFormat.FLOAT16:
        rows = rows.clamp(-65504, 65504)
    back = there_and_back(rows, FeatureLayout(width, name))
    assert back.shape == rows.shape and back.dtype == torch.float32
    # Numbers near zero have a fixed spacing: of the format itself, or of its share of the token's largest.
    floor = torch.zeros(count, 1)
    if name is FeatureFormat.FLOAT16:
        floor += 2.0**-25
    elif name is FeatureFormat.FP8_E4M3 and width:
        floor = rows.abs().amax(dim=1, keepdim=True) / 448 * 2**-10
    bound = torch.maximum(RELATIVE[name] * rows.abs(), floor.expand_as(rows)) * 1.001
    assert bool(((back - rows).abs() <= bound).all())


@given(st.sampled_from(FORMATS), st.integers(1, 6), st.integers(0, 2**31))
def test_a_second_trip_changes_nothing(name: FeatureFormat, count: int, seed: int) -> None:
    layout = FeatureLayout(8, name)
    once = there_and_back(torch.randn(count, 8, generator=torch.Generator().manual_seed(seed)), layout)
    torch.testing.assert_close(there_and_back(once, layout), once, rtol=1e-6, atol=0)


def test_a_worked_token_in_eight_bits() -> None:
    data, scales = encode(torch.tensor([[448.0 * 2, -896.0, 2.0, 0.0, 34.5]]), FeatureLayout(5, FeatureFormat.FP8_E4M3))
    assert scales == torch.tensor([2.0]).numpy().tobytes()
    # sign, four bits of exponent (bias 7), three of mantissa: 448 = 1.75 * 2^8, 1 = 1.0 * 2^0, 17.25 ~ 1.125 * 2^4 = 18 or 16
    assert data == bytes([0b0_1111_110, 0b1_1111_110, 0b0_0111_000, 0, 0b0_1011_001])


@pytest.mark.parametrize("name", FORMATS)
def test_no_rows_have_the_right_width_and_dtype_and_no_bytes(name: FeatureFormat) -> None:
    layout = FeatureLayout(24, name)
    assert encode(torch.empty(0, 24, dtype=torch.bfloat16), layout) == (b"", b"")
    back = decode(Features(0, 0, b""), layout, dtype=torch.bfloat16, device="cpu")
    assert back.shape == (0, 24) and back.dtype == torch.bfloat16


@pytest.mark.parametrize("name", FORMATS)
def test_a_token_of_zeros_stays_zero(name: FeatureFormat) -> None:
    assert bool((there_and_back(torch.zeros(2, 4), FeatureLayout(4, name)) == 0).all())


def test_what_float16_cannot_hold_is_its_largest_number() -> None:
    back = there_and_back(torch.tensor([[1e6, -1e6]]), FeatureLayout(2, FeatureFormat.FLOAT16))
    assert back.tolist() == [[65504.0, -65504.0]]


def test_the_bytes_are_as_many_as_the_layout_says() -> None:
    for name in FORMATS:
        layout = FeatureLayout(6, name)
        data, scales = encode(torch.ones(3, 6), layout)
        assert len(data) == 3 * layout.data_bytes and len(data) + len(scales) == 3 * layout.bytes_per_token


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 5\), expected \[n, 6\]"):
        encode(torch.ones(2, 5), FeatureLayout(6))
    with pytest.raises(InvalidRequest, match=r"features\.data"):
        decode(Features(0, 2, bytes(40)), FeatureLayout(6), dtype=torch.float32, device="cpu")


def test_a_model_computes_in_the_format_of_its_dtype() -> None:
    assert format_of(torch.bfloat16) is FeatureFormat.BFLOAT16
    with pytest.raises(ValueError, match="float64"):
        format_of(torch.float64)
