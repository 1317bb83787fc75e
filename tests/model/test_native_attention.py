"""The attention kernel in C: it computes what the description of a layer says, and where it cannot be had torch attends."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.errors import LoadError
from specsplit.model import Geometry, KVCache, PagePool, PageTable, Row
from specsplit.model.attention.backends import require_backend
from specsplit.model.attention.choosing import backend_over
from specsplit.model.attention.native_attention import NativeAttention
from specsplit.model.native import library
from specsplit.model.native.attention import LayerKernel, SeenRow, SeenRows
from specsplit.model.pages.geometry import ALL, NO_ATTENTION, Layer, Span
from specsplit.model.pages.input_batch import InputBatch
from tests.model.attended import SPANS, fill, new_tokens, placed, reference
from tests.model.ragged import cache_of, pools, ragged
from tests.support.rounding import assert_same_sums

CPU = torch.device("cpu")

needs_gcc = pytest.mark.skipif(library.obstacle() is not None, reason=str(library.obstacle()))


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    kv_heads, group = draw(st.sampled_from([(1, 3), (2, 1), (2, 2), (1, 7)]))
    widths = draw(st.sampled_from([(8, 8), (16, 8), (8, 16), (40, 24), (64, 64)]))
    within = widths[0] >= widths[1] and draw(st.booleans())
    return Layer(kv_heads * group, kv_heads, *widths, draw(SPANS), values_in_keys=within)


@needs_gcc
@settings(max_examples=100)
@given(st.data())
def test_it_computes_what_the_description_says_over_what_is_seen_alone(data: st.DataObject) -> None:
    """Where nothing of a text lies, and before all that a row sees, is NaN: it must not be read."""
    page_size = data.draw(st.sampled_from([1, 4, 16]))
    described = data.draw(st.lists(st.one_of(layers(), st.just(NO_ATTENTION)), min_size=1, max_size=4))
    geometry, most_rows = Geometry(tuple(described)), data.draw(st.sampled_from([1, 4]))
    pool = data.draw(pools(geometry, page_size, most_rows, 120))
    batch = data.draw(ragged(page_size, most_rows, 120, pool))
    rows = placed(batch)
    torch.manual_seed(data.draw(st.integers(0, 99)))
    kv = cache_of(geometry, batch.pool, torch.float32)
    forward = NativeAttention(kv, page_size).plan(InputBatch(rows, batch.pool.tables, CPU))
    for number, layer in enumerate(described):
        if layer == NO_ATTENTION:
            continue
        fill(kv, number, rows, batch.pool)
        query, key, value, sinks = new_tokens(layer, sum(row.num_tokens for row in rows))
        found = forward.attend(number, query, key, value, 0.4, {})
        assert_same_sums(found[0], reference(kv, number, rows, batch.pool, query, sinks))


@needs_gcc
@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(1, 9) | st.integers(10, 90)), min_size=1, max_size=6),
    st.integers(1, 7),
)
def test_however_many_threads_share_the_rows_it_is_the_same(shapes: list[tuple[int, int]], threads: int) -> None:
    heads, kv_heads, width = 6, 2, 16
    shapes = [(max(length, new), new) for length, new in shapes]
    generator = torch.Generator().manual_seed(sum(length for length, _ in shapes))
    keys, values = torch.randn(2, 500, kv_heads, width, generator=generator)
    query = torch.randn(sum(new for _, new in shapes), heads, width, generator=generator)
    rows, start = [], 0
    for length, new in shapes:
        slots = torch.randperm(500, generator=generator)[:length].numpy()
        rows.append(SeenRow(start, slots, np.tri(new, dtype=np.bool_)))
        start += new
    kernel = LayerKernel(heads, keys, values)
    alone, shared = (kernel.attend(SeenRows(rows), query, 0.25, count) for count in (1, threads))
    assert_same_sums(shared, alone)


@needs_gcc
@pytest.mark.parametrize("span", [ALL, Span(window=100)], ids=["all tokens", "a window"])
def test_rows_of_many_new_tokens_are_attended_to_beside_those_of_few(span: Span) -> None:
    described = Layer(4, 2, 16, 8, span)
    lengths, before = [3, 65, 11, 150, 12, 1], 20
    pool = PagePool(200, 4)
    tables = [PageTable(pool) for _ in lengths]
    for share in (2, 1):  # pages of the tables take turns
        for table, length in zip(tables, lengths, strict=True):
            table.reserve((before + length) // share)
    rows = [Row.chunk([7] * length, table.upto(before + length)) for table, length in zip(tables, lengths, strict=True)]
    torch.manual_seed(0)
    kv = cache_of(Geometry((described,)), pool, torch.float32)
    forward = NativeAttention(kv, 4).plan(InputBatch(rows, pool.tables, CPU))
    fill(kv, 0, rows, pool)
    query, key, value, sinks = new_tokens(described, sum(lengths))
    found = forward.attend(0, query, key, value, None, {})
    assert_same_sums(found[0], reference(kv, 0, rows, pool, query / 0.4 * 16**-0.5, sinks))


@needs_gcc
def test_a_number_that_is_none_is_not_passed_over() -> None:
    keys, values = torch.randn(2, 40, 1, 8, generator=torch.Generator().manual_seed(0))
    keys[17, 0, 3] = torch.nan
    query = torch.ones(2, 2, 8)
    rows = [
        SeenRow(0, np.arange(40), np.ones((1, 1), dtype=np.bool_)),
        SeenRow(1, np.arange(17), np.ones((1, 1), dtype=np.bool_)),
    ]
    out = LayerKernel(2, keys, values).attend(SeenRows(rows), query, 1.0, 2)
    assert out[0].isnan().all() and out[1].isfinite().all()


@needs_gcc
@pytest.mark.parametrize("new", [1, 12], ids=["few", "many"])
@pytest.mark.parametrize("numbers", [32, 64, 80])
def test_nothing_but_numbers_that_are_none_makes_none(new: int, numbers: int) -> None:
    """Whole blocks of them, which are all that was seen so far."""
    keys, values = torch.randn(2, 100, 1, 8, generator=torch.Generator().manual_seed(0))
    keys[:numbers] = torch.nan
    rows = [SeenRow(0, np.arange(100), np.tri(new, dtype=np.bool_))]
    assert LayerKernel(2, keys, values).attend(SeenRows(rows), torch.ones(new, 2, 8), 1.0, 2).isnan().all()


@needs_gcc
def test_very_different_scores_do_not_overflow() -> None:
    keys = torch.zeros(40, 1, 8)
    keys[:, 0, 0] = torch.linspace(-3e4, 3e4, 40)
    values = torch.arange(320.0).view(40, 1, 8)
    rows = SeenRows([SeenRow(0, np.arange(40), np.ones((1, 1), dtype=np.bool_))])
    (out,) = LayerKernel(1, keys, values).attend(rows, torch.ones(1, 1, 8), 1.0, 3)
    assert torch.equal(out, values[39])


@needs_gcc
@pytest.mark.parametrize(
    ("layer", "dtype", "stored", "reason"),
    [
        (Layer(2, 2, 8, 8), torch.bfloat16, None, "keys and values in float32, and these are kept as bfloat16"),
        (Layer(2, 2, 8, 8), torch.float32, torch.float8_e5m2, "these are kept as float8_e5m2"),
        (Layer(2, 2, 12, 8), torch.float32, None, "layer 1 has heads of 12 and 8, and it takes multiples of 8"),
        (Layer(2, 2, 8, 8, softcap=3.0), torch.float32, None, "layer 1 has soft caps or sinks"),
        (Layer(2, 2, 8, 8, sinks=True), torch.float32, None, "layer 1 has soft caps or sinks"),
    ],
)
def test_what_it_is_not_for_is_left_to_torch_and_refused_where_it_is_asked_for(
    layer: Layer, dtype: torch.dtype, stored: torch.dtype | None, reason: str
) -> None:
    kv = KVCache(Geometry((Layer(2, 2, 8, 8), layer)), 4, dtype, CPU, stored)
    assert backend_over("auto", kv, 4)[0] == "torch"
    with pytest.raises(
        LoadError, match=rf"attention = native cannot be had: .*{reason}.*, or take attention = auto or torch"
    ):
        require_backend("native", kv)
    kept = KVCache(Geometry((Layer(2, 2, 8, 8),)), 4, torch.float32, CPU)
    assert backend_over("auto", kept, 4)[0] == "native"


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder where libraries are kept, empty, and that is looked at again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library.found.cache_clear()
    yield tmp_path / "cache" / "specsplit" / "native"
    library.found.cache_clear()


@needs_gcc
def test_it_is_compiled_once_for_a_machine(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.obstacle() is None
    (kept,) = anew.iterdir()
    assert b"GOMP_parallel" in kept.read_bytes() and b"libgomp" not in kept.read_bytes(), "it has no threads of its own"
    assert anew.stat().st_mode & 0o777 == 0o700
    library.found.cache_clear()
    monkeypatch.setenv("PATH", "")  # no compiler is needed any more
    assert library.obstacle() is None


@needs_gcc
def test_a_library_that_is_broken_is_compiled_anew(
    anew: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert library.obstacle() is None
    (kept,) = anew.iterdir()
    broken = (
        tmp_path / "other" / "specsplit" / "native" / kept.name
    )  # one that was loaded is not loaded from its file again
    broken.parent.mkdir(parents=True, mode=0o700)
    broken.write_bytes(kept.read_bytes()[:100])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    library.found.cache_clear()
    assert library.obstacle() is None and broken.stat().st_size == kept.stat().st_size
    assert "cannot be loaded and is compiled anew" in caplog.text


@needs_gcc
def test_a_folder_that_others_write_into_is_not_loaded_from(anew: Path) -> None:
    anew.mkdir(parents=True)
    anew.chmod(0o770)
    assert library.obstacle() is None and not list(anew.iterdir())


def test_without_a_compiler_torch_attends_and_asking_for_it_says_what_to_install(
    anew: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("PATH", str(anew))
    kv = KVCache(Geometry.uniform(1, 2, 2, 8), 4, torch.float32, CPU)
    assert backend_over("auto", kv, 4)[0] == "torch"
    assert "attention = auto takes torch, and not native: kernels in C are not there: there is no gcc" in caplog.text
    with pytest.raises(LoadError, match=r"there is no gcc: install it .* or take attention = auto or torch"):
        require_backend("native", kv)


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = anew.parents[2] / "tools"
    tools.mkdir()
    (tools / "gcc").write_text("#!/bin/sh\necho 'no such option: -march=native' >&2\nexit 1\n")
    (tools / "gcc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}/bin")
    assert library.obstacle() == (f"kernels in C are not there: {tools / 'gcc'} fails: no such option: -march=native")
    assert not list(anew.iterdir())
