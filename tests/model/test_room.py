"""KV that takes a share of a device's memory: as many pages as fit, window pages and all, and memory that is still to come left alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import LoadError
from specsplit.model import CausalLM
from specsplit.model.pages.geometry import Geometry, Layer, Span
from specsplit.model.pages.kv import KVCache
from specsplit.model.pages.room import MemoryShare, Room, kv_bytes, kv_room, room_of
from specsplit.model.pages.windows import windows_of
from specsplit.settings import DrafterSettings, VerifierSettings
from tests.model.conftest import RECURRENT

PAGE = 4
PLAIN = Layer(4, 2, 8, 6)
WINDOW = Layer(4, 1, 8, 8, Span(window=12))
GEOMETRIES = [Geometry((PLAIN,) * 3), Geometry((WINDOW, PLAIN, WINDOW)), Geometry((WINDOW,) * 2)]


def window_tokens(window: int, kv_tokens: int) -> int:
    return min(kv_tokens, 16 * window)


@given(st.sampled_from(GEOMETRIES), st.integers(64, 300), st.booleans())
def test_bytes_are_those_that_a_cache_of_so_many_pages_takes(geometry: Geometry, pages: int, windowed: bool) -> None:
    tokens = window_tokens if windowed else None
    windows = windows_of(geometry, pages, PAGE, tokens)
    window_slots = 0 if windows is None else (windows.total_pages + 1) * PAGE
    kv = KVCache(geometry, (pages + 1) * PAGE, torch.float32, torch.device("cpu"), window_slots=window_slots)
    assert kv_bytes(geometry, pages, PAGE, 4, tokens) == kv.nbytes


@given(st.sampled_from(GEOMETRIES), st.integers(400_000, 4_000_000))
def test_as_many_pages_as_fit_and_no_more_than_are_of_use(geometry: Geometry, nbytes: int) -> None:
    pages = Room(nbytes, 1 << 20).pages(geometry, PAGE, 4, window_tokens)
    assert kv_bytes(geometry, pages, PAGE, 4, window_tokens) <= nbytes
    assert kv_bytes(geometry, pages + 1, PAGE, 4, window_tokens) > nbytes
    assert Room(nbytes, 1001).pages(geometry, PAGE, 4, window_tokens) == min(pages, 251)


@given(st.integers(400_000, 4_000_000), st.integers(1, 4096))
def test_what_is_kept_of_a_token_beside_its_kv_takes_part_of_the_room(nbytes: int, beside: int) -> None:
    def taken(pages: int) -> int:
        return kv_bytes(GEOMETRIES[0], pages, 1, 4, None) + (pages + 1) * beside

    pages = Room(nbytes, 300).pages(GEOMETRIES[0], 1, 4, beside=beside) if taken(256) <= nbytes else None
    assert pages is None or taken(pages) <= nbytes
    assert pages in (None, 300) or taken(pages + 1) > nbytes


def test_too_little_memory_says_what_to_do() -> None:
    with pytest.raises(
        LoadError, match=r"kv_share leaves 0.00 GiB .* hold 68 tokens, expected 256 at least: .* or set kv_tokens"
    ):
        Room(25_000, 1 << 20).pages(GEOMETRIES[0], PAGE, 4, None)


def share_of(free: int, sessions: int = 1000, weights: int = 1) -> MemoryShare:
    return MemoryShare(0.5, sessions, weights, lambda _: free)


def test_what_is_still_to_come_is_left_free() -> None:
    device = torch.device("cpu")
    assert share_of(1000).room(device, 10, 0) == 500
    assert share_of(1000, sessions=9).room(device, 10, 20) == (1000 - 200) // 2, (
        "states of the sessions, and of one more"
    )
    assert share_of(1000, weights=2).room(device, 100, 0) == (1000 - 100) // 2, (
        "weights that are read beside those in use"
    )
    assert share_of(10, weights=2).room(device, 100, 0) == 0


def test_all_ranks_have_the_room_of_the_one_that_has_least_and_drafts_are_room_too() -> None:
    def others(numbers: Sequence[int]) -> list[Sequence[int]]:
        return [numbers, [350], [900]]

    device = torch.device("cpu")
    assert room_of(share_of(1000), device, others, weight_bytes=0, max_context=128) == Room(350, 128_000)
    drafting = replace(share_of(1000, sessions=2), drafts=32)
    assert room_of(drafting, device, others, weight_bytes=0, max_context=128) == Room(350, 2 * 160)
    assert room_of(7, device, others, weight_bytes=0, max_context=128) == 7


SERVICES = [
    (VerifierSettings(model=Path("target"), device="cuda"), 16, 1024, 0.8),
    (DrafterSettings(model=Path("draft"), device="cuda:1"), 1, 65_536, 0.2),
]


@pytest.mark.parametrize(("settings", "page_size", "host_pages", "share"), SERVICES)
def test_a_share_is_taken_on_a_gpu_by_whoever_is_not_told_how_many_tokens(
    settings: VerifierSettings | DrafterSettings, page_size: int, host_pages: int, share: float
) -> None:
    def room(**values: object) -> int | MemoryShare:
        return kv_room(settings.model_copy(update=values), page_size, 5)

    assert room() == MemoryShare(share, settings.max_sessions, drafts=5)
    assert room(kv_share=0.4, weights_dir=Path("other")) == MemoryShare(0.4, settings.max_sessions, 2, drafts=5)
    assert room(kv_tokens=page_size * 50) == 50
    assert room(device="cpu") == host_pages


def test_a_model_takes_its_share_and_says_what_is_left(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    lm = CausalLM.load(folders["llama"], num_pages=share_of(1 << 22), page_size=PAGE)
    assert 0.9 * (1 << 21) < lm.kv.nbytes <= 1 << 21
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("KV has room")]
    assert told == [
        f"KV has room for {lm.pool.total_pages * PAGE} tokens, 0.00 GiB, since kv_tokens is not set (kv_share = 0.5); 0.00 GiB of cpu are "
        "left for CUDA graphs and what forwards compute"
    ]
    few = CausalLM.load(folders["llama"], num_pages=share_of(1 << 24, sessions=1), page_size=PAGE)
    assert few.pool.total_pages == few.info.max_context // PAGE, "one session has no use for more"


def test_states_of_sessions_come_off_before_the_share(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_config(RECURRENT["delta rules"]()).save_pretrained(tmp_path)
    free = 1 << 23
    lm = CausalLM.load(tmp_path, num_pages=share_of(free, sessions=20), page_size=PAGE)
    assert lm.states is not None
    assert lm.kv.nbytes <= (free - 21 * lm.states.session_bytes) // 2
