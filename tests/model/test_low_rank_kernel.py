"""What kernels for a GPU add for adapters of low rank, by triton's interpreter, held to one product after the other."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.adapters import Adapters
from specsplit.model.adapters.shares import ROWS, Shares
from specsplit.model.adapters.stack import Stack
from specsplit.model.adapters.static import StaticAdapters
from specsplit.model.graphs import Buckets, Captured, Results
from specsplit.model.lm.probe import adapted_logits, tree_logits
from specsplit.model.lm.replaced import use_gpu_layers
from specsplit.model.lm.revision import Revision
from tests.model.test_adapters import MIXED, mixed_logits, revised, write_adapters
from tests.support.adapters import write_adapter
from tests.support.copies import counted_copies
from tests.support.graphs import RecordingCapturer, TorchStatic
from tests.support.kernels import CPU, interpreted
from tests.support.low_rank import OWNERS, RANKS, check_sums, shares_by
from tests.support.rounding import assert_same_sums

from specsplit.model.layers.gpu.kit import fused_kit  # isort: skip

pytestmark = interpreted


@given(
    RANKS, OWNERS, st.sampled_from([(20, 33), (64, 128), (700, 130)]), st.sampled_from([torch.float32, torch.float16])
)
@settings(max_examples=40, deadline=None)
def test_each_row_has_what_its_adapter_adds_and_nothing_else(
    ranks: list[int], owners: list[int], widths: tuple[int, int], dtype: torch.dtype
) -> None:
    check_sums(ranks, owners, widths, torch.empty(0, dtype=dtype))


@given(OWNERS)
def test_segments_hold_every_token_of_an_adapter_once(owners: list[int]) -> None:
    shares = Shares()
    shares.begin(len(owners), shares_by([own or 1 for own in owners]))
    found = dict[int, int]()
    for adapter, *tokens in shares.segments(CPU).tolist():
        there = [token for token in tokens if token >= 0]
        assert there and tokens == [*there, *[-1] * (ROWS - len(there))]
        assert not found.keys() & set(there)
        found |= dict.fromkeys(there, adapter)
    assert found == {token: own or 1 for token, own in enumerate(owners)}


def test_what_is_added_to_a_row_depends_on_no_other_row_and_tiles_of_no_adapter_add_nothing() -> None:
    """So a captured launch may have more tiles than a forward has."""
    drawn = torch.Generator().manual_seed(0)
    stack = Stack(2, {2: (torch.randn(5, 40, generator=drawn), torch.randn(30, 5, generator=drawn))})
    rows = torch.randn(37, 40, generator=drawn)
    together, padded, alone = torch.zeros(3, 37, 30)
    shares = Shares()
    shares.begin(37, shares_by([2] * 37))
    tiles = shares.segments(CPU)
    assert len(tiles) == 3
    stack.add(tiles, rows, together)
    idle = torch.tensor([[0, *[-1] * ROWS], [1, *range(ROWS)]], dtype=torch.int32)
    stack.add(torch.cat([idle, tiles, idle]), rows, padded)
    for row in range(37):
        one = torch.tensor([[2, row, *[-1] * (ROWS - 1)]], dtype=torch.int32)
        stack.add(one, rows, alone)
    assert torch.equal(together, padded)
    # close, and not equal: the interpreter's products are numpy's, which sum up as there are rows
    torch.testing.assert_close(together, alone)
    stack.add(tiles[:0], rows, together)
    assert torch.equal(together, padded), "there are none"


def test_a_model_whose_adapters_are_added_by_kernels_gives_the_same_logits(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    adapters = write_adapters(tmp_path, folders["llama"])
    lm = CausalLM.load(folders["llama"], num_pages=64, page_size=4, cpu_layers=False, adapters=adapters)
    expected, adapted = mixed_logits(lm, MIXED), adapted_logits(lm)
    nbytes = sum(each.nbytes for each in lm.model.parameters())
    use_gpu_layers(lm, tree_logits(lm), fused_kit(), adapted)
    assert_same_sums(mixed_logits(lm, MIXED), expected)
    assert sum(each.nbytes for each in lm.model.parameters()) == nbytes
    layer: Any = lm.adapters.layers_of(1)[0]
    down, up = layer.adapter_1.down, layer.adapter_1.up
    assert down.untyped_storage().nbytes() > down.nbytes and up.untyped_storage().nbytes() > up.nbytes, "no second copy"


def by_kernels(target: Path, adapters: Path) -> CausalLM:
    """A target whose adapters are added by kernels."""
    lm = CausalLM.load(target, num_pages=64, page_size=4, cpu_layers=False, adapters=adapters)
    use_gpu_layers(lm, tree_logits(lm), fused_kit(), adapted_logits(lm))
    return lm


def test_a_captured_forward_goes_by_the_adapters_of_the_rows_that_it_is_replayed_for(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """Forwards in which no row has one are captured by themselves, and read none."""
    lm, capturer = by_kernels(folders["llama"], write_adapters(tmp_path, folders["llama"])), RecordingCapturer()
    mixes = [MIXED, [0] * 3, [3, 0, 1], [1] * 4, [0, 2]]
    expected = [mixed_logits(lm, mix) for mix in mixes]
    lm.capture_graphs(Buckets(128, 8), lazily=True, capturer=capturer, attention=TorchStatic(lm))
    assert capturer.captures == 2, "the largest, without adapters and with"
    for mix, logits in zip(mixes, expected, strict=True):
        assert_same_sums(mixed_logits(lm, mix), logits)
    assert lm.graph_statistics.replayed == 2 * len(mixes) and not sum(lm.graph_statistics.eager.values())
    table = PageTable(lm.pool)
    table.reserve(3)
    with counted_copies() as found, pytest.raises(ValueError, match="a row with adapter 4 of 3"):
        lm.forward([Row.chunk([7] * 3, table.upto(3), [2], adapter=4)])
    assert not found, "no copy is under way that the next forward does not wait for"


class Watching(RecordingCapturer):
    """Counts which of some objects are there while it captures."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: list[weakref.ref[object]] = []
        self.there = 0

    def capture(self, work: Callable[[], Results]) -> Captured:
        self.there += sum(each() is not None for each in self.watched)
        return super().capture(work)


def test_another_revision_is_captured_anew_with_its_own_adapters(folders: dict[str, Path], tmp_path: Path) -> None:
    second = revised(folders["llama"], tmp_path / "second")
    capturer = Watching()
    served = by_kernels(folders["llama"], write_adapters(tmp_path / "first", folders["llama"]))
    more = write_adapters(tmp_path / "more", folders["llama"])
    write_adapter(more / "z", folders["llama"], 9, rank=5)
    read, again = by_kernels(second, more), by_kernels(second, more)
    served.capture_graphs(Buckets(128, 8), lazily=True, capturer=capturer, attention=TorchStatic(served))
    mixed_logits(served, MIXED)
    before, revision = served.graph_statistics, Revision("second", read, served)
    capturer.watched = [weakref.ref(served.model), weakref.ref(read)]
    del read
    revision.copy_into(served)
    assert (served.graph_statistics.captured, capturer.captures) == (2, 4)
    assert not capturer.there, "what is captured has the memory of all that has been given up"
    mix = [*MIXED, 4]
    assert_same_sums(mixed_logits(served, mix), mixed_logits(again, mix))
    assert served.graph_statistics.replayed > before.replayed > 0


def test_captured_forwards_of_a_model_without_adapters_go_by_no_adapters_of_another(folders: dict[str, Path]) -> None:
    lm = CausalLM.load(folders["llama"], num_pages=16, page_size=4)
    inner, buckets = TorchStatic(lm), Buckets(8, 2)
    assert Adapters().static(StaticAdapters(inner, buckets, 3, CPU), buckets, CPU) is inner
