"""Loading, facts, and the edges of forward."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from specsplit.errors import RankLost
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.layers.sharded import ShardedBlocks
from tests.support.rounding import assert_same_sums


def test_the_facts_come_from_the_folder(llama: CausalLM, folders: dict[str, Path]) -> None:
    assert llama.info.model == folders["llama"].name
    assert llama.info.vocabulary.size == 97
    assert llama.info.max_context == 512
    assert llama.info.eos_token_ids == (2,)


def test_generation_config_may_name_several_end_tokens(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["llama"], tmp_path / "several")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert CausalLM.load(folder, num_pages=16, page_size=4).info.eos_token_ids == (2, 7)


def test_a_loaded_model_hands_its_pages_out_side_by_side(folders: dict[str, Path]) -> None:
    """A row whose slots are one run reads its KV in place; what the probe had taken must not lie crosswise."""
    lm = CausalLM.load(folders["llama"], num_pages=16, page_size=4)
    assert lm.pool.allocate(16).tolist() == list(range(16))


def test_a_process_that_goes_while_a_model_is_tried_out_is_missed_before_the_device_is_asked(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the others would wait for ever for what the device has yet to do together with it."""
    settled: list[int] = []

    def synchronize(self: ShardedBlocks) -> None:
        settled.append(len(settled))
        if len(settled) == 3:
            raise RankLost("rank 1 of 2 is lost")

    monkeypatch.setattr(ShardedBlocks, "synchronize", synchronize)
    with pytest.raises(RankLost, match="rank 1 of 2 is lost"):
        CausalLM.load(folders["llama"], num_pages=16, page_size=4)
    lm = CausalLM.load(folders["llama"], num_pages=16, page_size=4)
    once_loaded = len(settled)
    table = PageTable(lm.pool)
    table.reserve(1)
    lm.forward([Row.chunk([1], table.upto(1))])
    assert len(settled) == once_loaded > 3, "a forward that is served settles where it has to, and not by itself"


def test_no_rows_give_no_logits(llama: CausalLM) -> None:
    assert llama.forward([]).shape == (0, 97)


def test_a_row_that_asks_for_no_logits_gets_none_but_its_kv_is_stored(llama: CausalLM) -> None:
    table = PageTable(llama.pool)
    table.reserve(6)
    slots = table.slots(0, 6)
    llama.kv.data.zero_()
    assert llama.forward([Row.chunk([1, 2, 3, 4, 5, 6], table.upto(6))]).shape == (0, 97)
    assert llama.kv.data[:, :, torch.from_numpy(slots)].abs().sum(dim=(1, 3, 4)).all()


def test_logits_come_in_the_order_the_rows_ask(llama: CausalLM) -> None:
    tables = [PageTable(llama.pool) for _ in range(3)]
    for table in tables:
        table.reserve(40)
    sizes, wanted = (2, 33, 3), ([1], [32, 0], [2])
    rows = [Row.chunk(range(n), t.upto(n), w) for n, t, w in zip(sizes, tables, wanted, strict=True)]
    together = llama.forward(rows)
    alone = torch.cat([llama.forward([row]) for row in rows])
    assert_same_sums(together, alone)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "auto"])
def test_other_dtypes_load_and_answer_in_their_own(folders: dict[str, Path], dtype: str) -> None:
    lm = CausalLM.load(folders["qwen2"], num_pages=16, page_size=4, dtype=dtype)
    expected = torch.float32 if dtype == "auto" else getattr(torch, dtype)
    assert lm.kv.data.dtype == expected
    table = PageTable(lm.pool)
    table.reserve(3)
    logits = lm.forward([Row.chunk([1, 2, 3], table.upto(3), logits_at=[2])])
    assert logits.dtype == expected
    assert logits.isfinite().all()


def test_a_row_gives_the_same_logits_whether_its_pages_are_a_run_or_scattered(llama: CausalLM) -> None:
    run, first, second, scattered = (PageTable(llama.pool) for _ in range(4))
    run.reserve(16)
    for length in (4, 8, 12, 16):  # every other page is another's
        first.reserve(length)
        second.reserve(length)
    first.release()
    scattered.reserve(16)
    assert not (scattered.slots(0, 16)[1:] - scattered.slots(0, 16)[:-1] == 1).all()
    tokens, parents = [5, 9, 3, 7, 1, 2], [-1, 0, 0, 1, 1, 3]
    logits = []
    for table in (run, scattered):
        llama.forward([Row.chunk(range(1, 11), table.upto(10))])
        alone = llama.forward([Row.tree([4], [-1], table.upto(11))])
        logits.append(torch.cat([alone, llama.forward([Row.tree(tokens, parents, table.upto(16))])]))
    assert_same_sums(logits[0], logits[1])


def test_models_may_be_loaded_on_several_threads_at_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        loaded = list(
            pool.map(lambda _: CausalLM.load(Path("models/pocket/target"), num_pages=16, page_size=16), range(4))
        )
    assert {model.info for model in loaded} == {loaded[0].info}
    assert PreTrainedModel.tie_weights.__qualname__ == "PreTrainedModel.tie_weights", "transformers is as it was"


@pytest.mark.parametrize("kept", ["fp8_e4m3", "fp8_e5m2"])
def test_over_kv_of_8_bits_a_tree_gives_what_its_paths_give_token_by_token(folders: dict[str, Path], kept: str) -> None:
    lm = CausalLM.load(folders["llama"], num_pages=64, page_size=4, kv_cache_dtype=kept)
    parents, tokens = [-1, 0, 0, 1, 1, 3], [3, 1, 4, 1, 5, 9]
    tree = PageTable(lm.pool)
    tree.reserve(14)
    lm.forward([Row.chunk(range(11, 19), tree.upto(8))])
    packed = lm.forward([Row.tree(tokens, parents, tree.upto(14))])
    for node in range(len(tokens)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        alone = PageTable(lm.pool)
        alone.reserve(8 + len(path))
        text = [*range(11, 19), *(tokens[at] for at in path)]
        steps = [lm.forward([Row.tree([token], [-1], alone.upto(n))]) for n, token in enumerate(text, 1)]
        slots = tree.slots(0, 14)[[*range(8), *(8 + at for at in path)]], alone.slots(0, len(text))
        ours, theirs = (lm.kv.data[:, :, torch.from_numpy(each)].view(torch.uint8).int() for each in slots)
        apart = (ours - theirs).abs()
        assert apart.max() <= 1 and apart.sum() < 0.01 * apart.numel(), "numbers between two that 8 bits can say"
        if not apart.any():
            assert_same_sums(packed[node], steps[-1][0])
        alone.release()


def test_a_model_is_served_whatever_its_kv_is_rounded_to(folders: dict[str, Path]) -> None:
    """What 8 bits round may be as large as what the probe at load looks for."""
    exact, *rounded = (
        CausalLM.load(folders["llama"], num_pages=64, page_size=4, kv_cache_dtype=kept)
        for kept in ("auto", "fp8_e4m3", "fp8_e5m2")
    )
    logits = []
    for lm in (exact, *rounded):
        assert lm.pool.free_pages == lm.pool.total_pages
        table = PageTable(lm.pool)
        table.reserve(40)
        logits.append(lm.forward([Row.chunk(range(11, 51), table.upto(40), [39])]))
    for lm, found in zip(rounded, logits[1:], strict=True):
        assert lm.kv.nbytes * 4 == exact.kv.nbytes, "float32 otherwise"
        assert not torch.equal(found, logits[0])
