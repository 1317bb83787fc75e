"""Shared noise: the same Gumbel numbers for (seed, position, token) wherever and in whatever batch they are asked for.

A counter-based generator: splitmix64 (Steele, Lea, Flood, OOPSLA 2014) with a stream per (seed, position), token v being draw v.
The token a target picks is argmax of logits / T + noise, which is an exact sample of softmax(logits / T) (the Gumbel-max trick);
a drafter that adds the same noise to its own logits proposes what the target is likely to pick (arXiv 2408.07978, 2506.05632).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from specsplit.model.native.library import obstacle
from specsplit.model.native.uniforms import negated_uniforms
from specsplit.model.tensors.transfer import on_device
from specsplit.splitmix import GOLDEN, MIX_1, MIX_2, draw

_CPU_BLOCK: Final = 2**15
"""Numbers computed at a time on a CPU: the temporaries stay in its cache (and out of the kernel's page tables)."""

_KERNEL_BLOCK: Final = 2**17
"""Numbers that a kernel makes at a time: there are no temporaries, and each call waits for the interpreter's lock."""

_AHEAD: Final = 16
"""Rows that a cache makes at once, at most: with a small vocabulary it is the calls that cost, and not the numbers."""

ENTRY_BYTES: Final = 256
"""What it takes to remember where a row is: its entry, and the numbers in that."""


class Noise(Protocol):
    """A source of noise: `gumbel`, or a NoiseCache over it."""

    def __call__(self, seeds: Sequence[int], positions: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
        """Draw noise as `gumbel` does."""
        ...


def prepare_noise(device: torch.device) -> None:
    """Have the kernel compiled now that `gumbel` asks for on a CPU: that takes seconds, once on a machine, and steps would wait for it."""
    if device.type == "cpu":
        obstacle()


def gumbel(seeds: Sequence[int], positions: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
    """Standard Gumbel noise, float32 [R, vocab_size]: row r belongs to the token at positions[r] of a session with seeds[r].

    Uniforms are the odd multiples of 2^-53 below 1, so never 0 nor 1, and logs are taken in float64. -log(-log1p(-u)) keeps
    full resolution where it matters, among the large values that win.
    """
    noise = torch.empty(len(seeds), vocab_size, device=device)
    if device.type == "cpu" and obstacle() is None:
        rows = max(1, _KERNEL_BLOCK // vocab_size)
        for start in range(0, len(seeds), rows):
            own = slice(start, start + rows)
            noise[own] = _gumbel_of(negated_uniforms(seeds[own], positions[own], vocab_size))
        return noise
    streams = [signed(stream_key(seed, position)) for seed, position in zip(seeds, positions, strict=True)]
    keys = on_device(np.array(streams, dtype=np.int64), device)[:, None]
    draws = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device).mul_(signed(GOLDEN))
    rows = max(1, _CPU_BLOCK // vocab_size) if device.type == "cpu" else max(1, len(streams))
    for start in range(0, len(streams), rows):
        noise[start : start + rows] = _gumbel_of(_by_torch(keys[start : start + rows] + draws))
    return noise


class NoiseCache:
    """Remembers the noise rows used last: consecutive steps and expansions of a session ask for much the same positions.

    They lie side by side in one block: a tensor of its own for each row leaves holes between them that take more than the numbers.
    """

    def __init__(self, max_bytes: int, source: Noise = gumbel, *, ahead: int = _AHEAD) -> None:
        """max_bytes: what rows may take, ENTRY_BYTES of each included, beyond those of one call.

        ahead: rows that are made at once at most, of the positions behind those asked for, as far as a block of a CPU holds them.
        """
        self._max_bytes = max_bytes
        self._source = source
        self._ahead = ahead
        self._block = torch.empty(0, 0)
        """Numbers of the rows, [places, V]."""
        self._places: OrderedDict[tuple[int, int], int] = OrderedDict()
        """Where in the block the row of (seed, position) is; that used longest ago first."""
        self._free: list[int] = []

    def __call__(self, seeds: Sequence[int], positions: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
        """Give the numbers of `gumbel`. Rows that are asked for several times (nodes of one depth) are made once."""
        self.warm(seeds, positions, vocab_size, device)
        keys = list(zip(seeds, positions, strict=True))
        self._use(keys)
        rows = self._block.index_select(0, self._index(keys))
        self._shrink()
        return rows

    def has(self, seeds: Sequence[int], positions: Sequence[int]) -> bool:
        """Whether all of these rows are there, of the vocabulary and device that were asked for last."""
        return all(key in self._places for key in zip(seeds, positions, strict=True))

    def warm(self, seeds: Sequence[int], positions: Sequence[int], vocab_size: int, device: torch.device) -> None:
        """Make the rows that are missing, for a call that is soon to come: all of them are there until rows are made again."""
        if (self._block.shape[1], self._block.device) != (vocab_size, device):
            self._start(vocab_size, device)
        wanted = dict.fromkeys(zip(seeds, positions, strict=True))
        missing = [key for key in wanted if key not in self._places]
        if missing:
            self._use(key for key in wanted if key in self._places)
            missing += self._soon(missing, vocab_size)
            fresh = self._source(
                [seed for seed, _ in missing], [position for _, position in missing], vocab_size, device
            )
            self._find_places(missing, len(wanted))
            self._block.index_copy_(0, self._index(missing), fresh)

    @torch.inference_mode(False)
    def _start(self, vocab_size: int, device: torch.device) -> None:
        self._block = torch.empty(0, vocab_size, device=device)
        self._places.clear()
        self._free.clear()

    def _soon(self, missing: Sequence[tuple[int, int]], vocab_size: int) -> list[tuple[int, int]]:
        """What is asked for next, if sessions go on as they do."""
        last: dict[int, int] = {}
        for seed, position in missing:
            last[seed] = max(position, last.get(seed, position))
        free_rows = min(_CPU_BLOCK // vocab_size, self._ahead) - len(missing)
        each = max(0, free_rows) // len(last)
        soon = ((seed, position + i) for seed, position in last.items() for i in range(1, each + 1))
        return [key for key in soon if key not in self._places]

    def _find_places(self, missing: Sequence[tuple[int, int]], wanted: int) -> None:
        """Give every missing row a place: a free one, a new one, or that of a row used longest ago, but of none of the `wanted` rows."""
        before = len(self._block)
        if len(self._free) < len(missing) and before < self._capacity:
            self._grow(min(self._capacity, max(2 * before, before + len(missing))))
        while len(self._free) < len(missing) and len(self._places) > wanted:
            self._free.append(self._places.popitem(last=False)[1])
        if len(self._free) < len(missing):
            self._grow(len(self._block) + len(missing) - len(self._free))
        for key in missing:
            self._places[key] = self._free.pop()

    @torch.inference_mode(False)  # rows are written into the block in either mode
    def _shrink(self) -> None:
        """Forget the rows used longest ago that there is no room for."""
        if len(self._block) <= self._capacity:
            return
        while len(self._places) > self._capacity:
            self._places.popitem(last=False)
        self._block = self._block.index_select(0, self._index(list(self._places)))
        self._places = OrderedDict((key, place) for place, key in enumerate(self._places))
        self._free.clear()

    @torch.inference_mode(False)
    def _grow(self, places: int) -> None:
        block = self._block.new_empty(places, self._block.shape[1])
        block[: len(self._block)] = self._block
        self._free += range(len(self._block), places)
        self._block = block

    @property
    def _capacity(self) -> int:
        return self._max_bytes // (4 * self._block.shape[1] + ENTRY_BYTES)

    def _use(self, keys: Iterable[tuple[int, int]]) -> None:
        for key in keys:
            self._places.move_to_end(key)

    def _index(self, keys: Sequence[tuple[int, int]]) -> Tensor:
        return on_device(np.array([self._places[key] for key in keys], dtype=np.int64), self._block.device)


def stream_key(seed: int, position: int) -> int:
    """The 64-bit start of the stream of one position of one session."""
    return draw(draw(seed) + position * GOLDEN)


def _gumbel_of(negated: Tensor) -> Tensor:
    """Make noise of -u, float64; uses these up."""
    return negated.log1p_().neg_().log_().neg_()


def _by_torch(state: Tensor) -> Tensor:
    """Make -u of generator states int64, float64; uses `state` up."""
    bits = _xor_shifted(state, 30).mul_(signed(MIX_1))
    bits = _xor_shifted(bits, 27).mul_(signed(MIX_2))
    odd = _xor_shifted(bits, 31).bitwise_right_shift_(11).bitwise_and_(2**53 - 1).bitwise_or_(1)
    return odd.to(torch.float64).mul_(-(2.0**-53))


def _xor_shifted(bits: Tensor, by: int) -> Tensor:
    """bits ^ bits >> by, in place; the shift brings in zeros (int64's own would bring in the sign)."""
    return bits.bitwise_xor_((bits >> by).bitwise_and_((1 << (64 - by)) - 1))


def signed(z: int) -> int:
    """Give the two's complement reading of a 64-bit pattern: torch computes in int64, which wraps the same way."""
    return z - 2**64 if z >= 2**63 else z
