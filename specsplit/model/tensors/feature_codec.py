"""Features as bytes and back: rows of a tensor to what a FeatureLayout says, and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.features import FeatureFormat, FeatureLayout, Features, Payload, Raw

_DTYPES: Final = {
    FeatureFormat.FLOAT32: torch.float32,
    FeatureFormat.BFLOAT16: torch.bfloat16,
    FeatureFormat.FLOAT16: torch.float16,
    FeatureFormat.FP8_E4M3: torch.float8_e4m3fn,
}
_FORMATS: Final = {dtype: name for name, dtype in _DTYPES.items() if not name.scaled}
_SMALLEST_SCALE: Final = torch.finfo(torch.float32).tiny


def format_of(dtype: torch.dtype) -> FeatureFormat:
    """The format that a model of `dtype` computes in. Raises ValueError for one that has none."""
    if dtype not in _FORMATS:
        expected = ", ".join(sorted(str(known) for known in _FORMATS))
        raise ValueError(f"features of dtype {dtype} have no format, expected one of {expected}")
    return _FORMATS[dtype]


def encode(rows: Tensor, layout: FeatureLayout) -> tuple[bytes, bytes]:
    """rows [n, width] -> (data, scales) as `layout` says; n may be 0. Copies from the device once. Raises ValueError as `pack` does."""
    packed = pack(rows, layout).cpu().numpy()
    data, scales = split(lambda: packed, slice(0, len(rows)), layout)
    return bytes(data), bytes(scales)


def split(packed: Callable[[], NDArray[np.uint8]], tokens: slice, layout: FeatureLayout) -> tuple[Raw, Raw]:
    """Part the bytes of some tokens of what `packed` gives, uint8 [n, bytes_per_token] on the host, -> (data, scales).

    `packed` is asked when somebody asks for the bytes. `tokens` has both ends.
    """
    count, data_bytes = tokens.stop - tokens.start, layout.data_bytes
    data = Payload(count * data_bytes, partial(_columns, packed, tokens, slice(data_bytes)))
    if not layout.format.scaled:
        return data, b""
    scale_bytes = layout.bytes_per_token - data_bytes
    return data, Payload(count * scale_bytes, partial(_columns, packed, tokens, slice(data_bytes, None)))


def _columns(packed: Callable[[], NDArray[np.uint8]], tokens: slice, columns: slice) -> bytes:
    return packed()[tokens, columns].tobytes()


@torch.inference_mode()
def pack(rows: Tensor, layout: FeatureLayout) -> Tensor:
    """rows [n, width] -> uint8 [n, bytes_per_token] on their device, each token's scale behind its numbers; n may be 0.

    What a format cannot hold becomes its largest number of that sign. fp8_e4m3 is saturated round to nearest with one scale per
    token, the token's largest magnitude over 448. Raises ValueError for rows of another width.
    """
    if rows.dim() != 2 or rows.shape[1] != layout.width:
        raise ValueError(f"features of shape {tuple(rows.shape)}, expected [n, {layout.width}] ({layout})")
    if not rows.numel():
        return torch.zeros(len(rows), layout.bytes_per_token, dtype=torch.uint8, device=rows.device)
    if layout.format.scaled:
        return _scaled(rows, _DTYPES[layout.format])
    return _bytes(saturated(rows, _DTYPES[layout.format]))


def decode(
    features: Features, layout: FeatureLayout, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """Features that are laid out as `layout` says -> [count, width] of `dtype`. Raises InvalidRequest if they are not."""
    layout.check(features)
    rows = _tensor(features.data, (features.count, layout.width), _DTYPES[layout.format]).to(device)
    if not layout.format.scaled:
        return rows.to(dtype)
    scales = _tensor(features.scales, (features.count, 1), torch.float32).to(device)
    return (rows.float() * scales).to(dtype)


def _scaled(rows: Tensor, dtype: torch.dtype) -> Tensor:
    rows = rows.float()
    scales = (rows.abs().amax(dim=1, keepdim=True) / torch.finfo(dtype).max).clamp_min(_SMALLEST_SCALE)
    return torch.cat([_bytes(saturated(rows / scales, dtype)), _bytes(scales)], dim=1)


def saturated(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert rows to `dtype`; what that cannot hold becomes its largest number of that sign."""
    largest = torch.finfo(dtype).max
    return rows.to(dtype) if torch.finfo(rows.dtype).max <= largest else rows.clamp(-largest, largest).to(dtype)


def _bytes(rows: Tensor) -> Tensor:
    return rows.contiguous().view(torch.uint8)


def _tensor(data: Raw, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    return (
        torch.frombuffer(bytearray(bytes(data)), dtype=dtype).view(shape) if data else torch.empty(shape, dtype=dtype)
    )
