"""Features: which hidden states of the target a draft head reads, how wide they are, and how they travel.

A feature is one row per committed token: the hidden states of the layers that the head asked for, side by side, or what the head's own
projection makes of them. Everyone who needs a width or a dtype (capture, wire, draft extend, idle and empty batches) asks
`FeatureNeed.layout`; nobody computes one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from specsplit.errors import Incompatible, InvalidRequest

LAST: Final = -1
"""The number that stands for the last layer's output behind the final norm, which is what the target's LM head reads."""
SCALE_BYTES: Final = 4
"""A float32 per token, for formats that need one."""


class FeatureFormat(StrEnum):
    """The formats in which features travel."""

    TARGET = "target"
    """The format in which the target computes them; a layout always has one of the others."""
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FP8_E4M3 = "fp8_e4m3"
    """Eight bits, with a float32 scale per token: its largest magnitude over 448 (arXiv 2209.05433)."""

    @property
    def itemsize(self) -> int:
        """Bytes of one number. Raises ValueError for `target`, which is no format of its own."""
        return _ITEMSIZES[self]

    @property
    def scaled(self) -> bool:
        """True if every token has a scale."""
        return self is FeatureFormat.FP8_E4M3


_ITEMSIZES: Final = {
    FeatureFormat.FLOAT32: 4,
    FeatureFormat.BFLOAT16: 2,
    FeatureFormat.FLOAT16: 2,
    FeatureFormat.FP8_E4M3: 1,
}


@dataclass(frozen=True)
class FeatureLayout:
    """Features as they travel: `width` numbers of `format` per token. Width 0: there are none."""

    width: int = 0
    format: FeatureFormat = FeatureFormat.FLOAT32

    def __post_init__(self) -> None:
        if self.format is FeatureFormat.TARGET:
            raise InvalidRequest("features.format", "is target, expected the format that this is")

    @property
    def data_bytes(self) -> int:
        """Bytes of one token, its scale not counted."""
        return self.width * self.format.itemsize

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token on the wire."""
        return self.data_bytes + (SCALE_BYTES if self.format.scaled else 0)

    def check(self, features: Features) -> None:
        """Raise InvalidRequest naming the field unless `features` is laid out like this."""
        if len(features.data) != features.count * self.data_bytes:
            raise InvalidRequest(
                "features.data",
                f"has {len(features.data):,} bytes for {features.count} tokens, expected {self.data_bytes:,} each ({self})",
            )
        scales = features.count * SCALE_BYTES if self.format.scaled else 0
        if len(features.scales) != scales:
            raise InvalidRequest("features.scales", f"has {len(features.scales):,} bytes, expected {scales:,}")

    def __str__(self) -> str:
        return f"{self.width} x {self.format.value}"


@dataclass(frozen=True)
class FeatureNeed:
    """What a drafter asks of a verifier; the default asks for nothing."""

    layers: tuple[int, ...] = ()
    """Hidden states in this order: k is the output of decoder layer k, counted from 1; 0 the embeddings; LAST behind the final norm."""
    hidden_size: int = 0
    """Width of the target that the drafter was made for."""
    format: FeatureFormat = FeatureFormat.TARGET
    """How they are to travel."""
    projection: str = ""
    """Hex SHA-256 of the projection that the verifier is to apply before it sends them; empty: none."""
    projected_size: int = 0
    """Width behind the projection."""

    def __bool__(self) -> bool:
        return bool(self.layers)

    def layout(self, hidden_size: int, dtype: FeatureFormat) -> FeatureLayout:
        """Width and dtype for a target of `hidden_size` that computes in `dtype`: the one place that knows.

        Without need, no columns. With a projection, its width; otherwise one target width per layer.
        """
        if not self.layers:
            return FeatureLayout(0, dtype)
        width = self.projected_size if self.projection else len(self.layers) * hidden_size
        return FeatureLayout(width, dtype if self.format is FeatureFormat.TARGET else self.format)

    def require_fit(self, offered: FeatureLayout) -> None:
        """Raise Incompatible, naming both widths, unless what a verifier offers is as wide as what the drafter reads."""
        wanted = self.layout(self.hidden_size, offered.format)
        if wanted.width != offered.width:
            raise Incompatible(
                f"feature width mismatch: the drafter reads {wanted.width} numbers per token ({self}); "
                f"the verifier's target gives {offered.width}"
            )
        if wanted.format is not offered.format:
            raise Incompatible(
                f"feature format mismatch: the drafter reads {wanted.format.value}, the verifier gives {offered.format.value}"
            )

    @property
    def layer_names(self) -> str:
        """The layers in words, for instance "2, 3, last"."""
        return ", ".join("last" if layer == LAST else str(layer) for layer in self.layers)

    def __str__(self) -> str:
        return f"layers {self.layer_names} of a target of width {self.hidden_size}" if self.layers else "none"


class Payload:
    """Bytes of which only the number is known until somebody asks for them. They are made once; any thread may ask."""

    __slots__ = ("_length", "_source")

    def __init__(self, length: int, make: Callable[[], bytes]) -> None:
        """`make` gives `length` bytes, and is let go with all that it holds once it has."""
        self._length = length
        self._source: bytes | Callable[[], bytes] = make

    def __len__(self) -> int:
        return self._length

    def __bytes__(self) -> bytes:
        source = self._source
        if not isinstance(source, bytes):
            # Two threads may both come here; what they make is the same.
            self._source = source = source()
        return source

    def __eq__(self, other: object) -> bool:
        return bytes(self) == bytes(other) if isinstance(other, bytes | Payload) else NotImplemented

    def __hash__(self) -> int:
        return hash(bytes(self))

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self),)

    def __repr__(self) -> str:
        return f"Payload({self._length} bytes)"


Raw: TypeAlias = bytes | Payload


@dataclass(frozen=True)
class Features:
    """Features of consecutive committed tokens of one session, encoded as its layout says."""

    first: int
    """Position of the first token."""
    count: int
    """Tokens; at least one."""
    data: Raw
    """Rows end to end, little-endian."""
    scales: Raw = b""
    """A float32 per token where the format has one, otherwise empty."""

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.first + self.count

    @property
    def nbytes(self) -> int:
        """Bytes of data and scales; it makes none."""
        return len(self.data) + len(self.scales)

    def make_bytes(self) -> None:
        """Make the bytes, so that nothing but them is held."""
        bytes(self.data)
        bytes(self.scales)
