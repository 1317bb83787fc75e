"""Whole runs of `specsplit train-head`, on the pocket target."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specsplit.cli.local import LocalCluster
from specsplit.errors import Incompatible, InvalidRequest, Unavailable, Unsupported
from specsplit.features import LAST
from specsplit.model.heads import BlockSight, load_block_head, load_head
from specsplit.training import trainer as trainers
from specsplit.training.lessons import Lessons, Sample
from specsplit.training.meter import Meter, unmetered
from specsplit.training.order import KINDS, WITH_TRAINER, HeadOrder
from specsplit.training.published import publish_checkpoint
from specsplit.training.run import train_head
from specsplit.training.speculators_trainer import NEW, OLD, publish, recover
from specsplit.training.teacher import Reading
from specsplit.training.trainer import Trainer, best_checkpoint, options_of, steps_done
from specsplit.training.work import WORK, open_work
from specsplit.values import DrafterKind, PlanChanges
from tests.support.command import run

ROOT = Path(__file__).parents[2]
POCKET = ROOT / "models" / "pocket" / "target"
WHOLE = PlanChanges(num_steps=2, topk=2, num_draft_tokens=4, draft_ahead=False, wait_budget_us=2_000_000)
"""Every step has a tree, however busy the machine and however bad the head."""
OF_TRAINER = {"layers": "2,4,6", "num-layers": 1}
PROMPTS = [
    "def main(",
    "class Reader:",
    "import os\n\n",
    "for each in",
    "return self.",
    "if not ",
    "with open(",
    "try:\n",
]


def found_trainer() -> Trainer | str:
    """The trainer of speculators, or why there is none."""
    try:
        return Trainer.find(None, POCKET)
    except Unavailable as error:
        return str(error)


FOUND = found_trainer()
needs_trainer = pytest.mark.skipif(isinstance(FOUND, str), reason=str(FOUND))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return file


def options(drafter: DrafterKind, file: Path, folder: Path, **more: Any) -> list[str]:
    given = {"target": POCKET, "data": file, "kind": drafter.value, "out": folder, "max-new-tokens": 24, "epochs": 2}
    own = {
        "batch-tokens": 64,
        "held-out": 2,
        "depth": 2,
        **(OF_TRAINER if drafter in WITH_TRAINER else {}),
    }
    return [
        "train-head",
        *(word for name, value in {**given, **own, **more}.items() for word in (f"--{name}", str(value))),
    ]


def unmetered_job(_title: str) -> AbstractContextManager[Meter]:
    return nullcontext(unmetered)


def tensors_of(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize(
    "kind",
    [
        DrafterKind.MULTI_LAYER_EAGLE,
        pytest.param(DrafterKind.EAGLE, marks=pytest.mark.slow),
        pytest.param(DrafterKind.EAGLE3, marks=[needs_trainer, pytest.mark.slow]),
        pytest.param(DrafterKind.DFLASH, marks=[needs_trainer, pytest.mark.slow]),
        pytest.param(DrafterKind.DSPARK, marks=[needs_trainer, pytest.mark.slow]),
    ],
)
def test_from_a_file_of_prompts_to_a_head_that_drafts_for_a_cluster(
    kind: DrafterKind, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "head"
    assert run(*options(kind, data, out)) == 0
    said = capsys.readouterr()
    assert f"specsplit serve drafter --kind {kind} --model {out}" in said.out
    assert "texts that the target writes: 8 of 8" in said.err and "training: " in said.err
    assert sorted(each.name for each in out.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    card = (out / "README.md").read_text()
    assert "data.jsonl: 6 texts of" in card and "2 texts that were not learnt from" in card and "| 2 | " in card
    head = load_block_head(out, POCKET, kind) if kind.drafts_blocks else load_head(out, POCKET, kind)
    assert head.shape.need.layers == ((2, 4, 6) if kind in WITH_TRAINER else (LAST,))
    willing: dict[str, Any] = {"verifier": {"adaptive": "static"}, "drafter": {"node_us": 0.001}}
    with LocalCluster(POCKET, {kind: out}, drafters=[kind], **willing) as cluster, cluster.client() as client:
        result = client.generate(prompt="def main(", max_tokens=16, drafter=kind, plan=WHOLE)
    assert result.done.speculation.drafted > 0


@needs_trainer
@pytest.mark.slow
def test_a_block_drafter_sees_what_it_was_ordered_to_see(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    assert run(*options(DrafterKind.DFLASH, data, out, **{"num-layers": 2, "windows": "1,0"}), "--causal") == 0
    said = load_block_head(out, POCKET, DrafterKind.DFLASH).said
    assert said.sights == (BlockSight(1, causal=True), BlockSight(causal=True))
    assert (
        "2 tokens ahead, windows of 1, 0 tokens (0: all) by layer, causal blocks, seed 0"
        in (out / "README.md").read_text()
    )
    assert said.from_anchor and said.depth == 2 and said.selector is not None and said.conv is not None


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        (DrafterKind.EAGLE, "texts.jsonl"),
        (DrafterKind.MULTI_LAYER_EAGLE, "hs_3.safetensors"),
        (DrafterKind.EAGLE, "head.pt"),
    ],
)
def test_a_run_that_is_killed_goes_on_and_ends_as_an_unbroken_one(
    kind: DrafterKind, at: str, data: Path, tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run(*options(kind, data, whole)) == 0
    died = subprocess.run([sys.executable, "-c", _DYING, at, *options(kind, data, broken)], cwd=ROOT, check=False)
    assert died.returncode == 9 and (broken / WORK).is_dir()
    assert run(*options(kind, data, broken)) == 0
    for name, tensor in tensors_of(whole).items():
        assert torch.equal(tensor, tensors_of(broken)[name]), name
    assert (whole / "README.md").read_text() == (broken / "README.md").read_text()


_DYING = """
import os, sys
at, replace = sys.argv[1], os.replace
def replace_and_die(source, place):
    replace(source, place)
    if str(place).endswith(at) and os.path.getsize(place):
        os._exit(9)
os.replace = replace_and_die
from specsplit.cli import app
app(sys.argv[2:], prog_name="specsplit")
"""
"""Dies, as by SIGKILL, in the moment in which a file of this name that is not empty is put in its place."""


@needs_trainer
@pytest.mark.slow
def test_the_trainer_of_speculators_goes_on_from_its_latest_checkpoint(data: Path, tmp_path: Path) -> None:
    assert isinstance(FOUND, Trainer)
    given = {
        "verifier-name-or-path": POCKET, "speculator-type": "eagle3", "target-layer-ids": (2, 4, 6), "mask-token-id": 0,
        "full-attention-indices": 0, "ttt-steps": 2, "epochs": 2, "total-seq-len": 32, "checkpoint-freq": 0.25,
        "num-workers": 0, "train-data-ratio": 6.5 / 8,
    }  # fmt: skip

    def stop(done: float, _total: float, _note: str = "") -> None:
        if done >= 5:
            raise KeyboardInterrupt

    for name in ("whole", "broken"):
        lay_out(tmp_path / name)
    whole, steps = FOUND.train(Lessons(tmp_path / "whole", 8, 2), given, unmetered)
    with pytest.raises(KeyboardInterrupt):
        FOUND.train(Lessons(tmp_path / "broken", 8, 2), given, stop)
    assert 0 < steps_done(tmp_path / "broken" / "checkpoints") < steps
    again, as_many = FOUND.train(Lessons(tmp_path / "broken", 8, 2), given, unmetered)
    assert as_many == steps
    ours = load_file(again / "model.safetensors")
    for name, tensor in load_file(whole / "model.safetensors").items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


def lay_out(folder: Path) -> None:
    """Lessons on nothing in particular."""
    chance = torch.Generator().manual_seed(0)
    lessons = Lessons(folder, 8, 2)
    for index in range(8):
        tokens = torch.randint(0, 2048, (20,), generator=chance).tolist()
        lessons.add(Sample(index, tuple(tokens), 4))
        lessons.keep(index, Reading(torch.randn(20, 4, 256, generator=chance), torch.tensor(tokens)))


def test_a_checkpoint_of_the_trainer_becomes_a_head_without_what_its_target_has(tmp_path: Path) -> None:
    checkpoint, out = ROOT / "tests" / "data" / "heads" / "eagle3-llama", tmp_path / "head"
    publish_checkpoint(checkpoint, POCKET, out)
    before, after = load_file(checkpoint / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() - after.keys() == {"embed_tokens.weight", "t2d"} & before.keys()
    assert all(torch.equal(before[name].bfloat16(), after[name]) for name in after if after[name].is_floating_point())
    facts = json.loads((out / "config.json").read_text())
    assert facts["speculators_config"]["verifier"]["name_or_path"] == "target"
    assert facts["dtype"] == "bfloat16" and "auto_map" not in facts


def checkpoint_in(folder: Path, epoch: int, steps: int) -> None:
    (folder / str(epoch)).mkdir(parents=True)
    (folder / str(epoch) / "training_state.json").write_text(json.dumps({"global_step": steps}))


def test_a_checkpoint_takes_its_place_whole_and_a_kill_in_between_leaves_one(tmp_path: Path) -> None:
    checkpoint_in(tmp_path / NEW, 0, 5)
    publish(tmp_path, 0, set())
    checkpoint_in(tmp_path / NEW, 0, 9)
    publish(tmp_path, 0, set())
    assert steps_done(tmp_path) == 9
    checkpoint_in(tmp_path / NEW, 1, 14)
    publish(tmp_path, 1, {"0"})
    assert (tmp_path / "0").exists(), "the best so far is kept"
    checkpoint_in(tmp_path / NEW, 1, 17)
    (tmp_path / "1").rename(tmp_path / OLD)  # killed between the two
    recover(tmp_path)
    assert steps_done(tmp_path) == 17
    checkpoint_in(tmp_path / NEW, 1, 20)  # killed while it was written
    recover(tmp_path)
    assert steps_done(tmp_path) == 17
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0", "1"]


def test_the_best_checkpoint_is_taken_and_else_the_latest(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no checkpoint"):
        best_checkpoint(tmp_path)
    for epoch in (2, 10):
        checkpoint_in(tmp_path, epoch, epoch)
    assert best_checkpoint(tmp_path).name == "10"
    (tmp_path / "2" / "model.safetensors").touch()
    (tmp_path / "checkpoint_best").symlink_to("2")
    assert best_checkpoint(tmp_path).name == "2"


def test_a_python_without_the_trainer_is_an_error_that_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match=r"--trainer: there is no program .*pip install 'speculators==0\.9"):
        Trainer.find(tmp_path / "python", POCKET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainers, "find_spec", lambda _: None)
    with pytest.raises(Unavailable, match=r"pip install 'speculators==0\.9"):
        Trainer.find(None, POCKET)


@pytest.mark.skipif(
    trainers.find_spec("speculators") is not None, reason="speculators is installed in this environment"
)
def test_a_python_that_lacks_speculators_is_named() -> None:
    with pytest.raises(Unavailable, match=r"lacks what the trainer needs"):
        Trainer.find(Path(sys.executable), POCKET)


@needs_trainer
def test_a_target_that_the_trainers_transformers_does_not_know_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "of_tomorrow"}')
    with pytest.raises(Incompatible, match="cannot read the config"):
        Trainer.find(None, tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": "nowhere"}, "--target: there is no folder nowhere"),
        ({"target": "docs"}, "--target: docs has no config.json"),
        ({"data": "nothing.jsonl"}, "--data: there is no file nothing.jsonl"),
        ({"kind": "ngram"}, "--kind: ngram is not trained here; expected eagle3 or"),
        ({"kind": "eagle9"}, "--kind: is 'eagle9', expected eagle3 or"),
        ({"layers": "2,x"}, "--layers: is '2,x', expected numbers with commas"),
        ({"layers": "1,2"}, "--layers: is for eagle3 or dflash or dspark alone, and --kind is eagle"),
        ({"draft-vocab": 9}, "--draft-vocab: is for eagle3 or dflash or dspark alone"),
        ({"kind": "dflash", "draft-vocab": 9}, "--draft-vocab: is not for dflash"),
        ({"windows": "1,0"}, "--windows: is for dflash or dspark alone, and --kind is eagle"),
        ({"kind": "dflash", "windows": "1,all"}, "--windows: is '1,all', expected numbers with commas"),
        ({"kind": "dflash", "windows": "1,0"}, "--windows: is 1, 0, of 2 layers; the drafter has 5 (--num-layers)"),
        ({"kind": "dspark", "windows": "1,2", "num-layers": 2}, "--windows: is 1, 2, expected 0 and one"),
        ({"kind": "dspark", "windows": "0,-1", "num-layers": 2}, "--windows: is 0, -1, expected 0 and one"),
        ({"intermediate-size": 9}, "--intermediate-size: is for layers of multi_layer_eagle alone"),
        ({"held-out": 8}, "--held-out: is 8 of 8 texts in all; expected fewer"),
        ({"max-length": 32, "samples": 1}, "samples"),
        ({"steps": 3}, "No such option: --steps"),
    ],
)
def test_what_cannot_be_trained_is_one_line_that_names_the_option(
    change: dict[str, Any], said: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*options(DrafterKind.EAGLE, data, tmp_path / "head", **change)) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def order(data: Path, out: Path, **change: Any) -> HeadOrder:
    return HeadOrder(POCKET, (data,), **{"kind": DrafterKind.EAGLE, "out": out, **change})


def test_a_folder_that_holds_something_else_is_left_alone(data: Path, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "love.txt").touch()
    with pytest.raises(InvalidRequest, match=r"--out: .*letters is there already and holds no unfinished run"):
        train_head(order(data, tmp_path / "letters"), print, unmetered_job)
    assert [each.name for each in (tmp_path / "letters").iterdir()] == ["love.txt"]


def test_block_drafters_have_options_of_the_trainer(data: Path, tmp_path: Path) -> None:
    lay_out(tmp_path / "lessons")
    lessons = Lessons(tmp_path / "lessons", 8, 2)
    small: dict[str, Any] = {"out": tmp_path / "head", "batch_tokens": 64, "num_layers": 2}
    plain = options_of(order(data, kind=DrafterKind.DFLASH, **small), lessons, (2, 4, 6))
    assert (plain["speculator-type"], plain["selector-rank"]) == ("dflash2", 64)
    assert plain["full-attention-indices"] == (0, 1)
    assert (plain["block-size"], plain["max-anchors"]) == (8, 8) and "draft-vocab-size" not in plain
    assert {"no-sample-from-anchor", "sliding-window-non-causal"} <= plain.keys()
    causal = options_of(
        order(data, kind=DrafterKind.DFLASH, windows=(1, 0), causal=True, depth=8, **small), lessons, (2, 4, 6)
    )
    assert (causal["sliding-window"], causal["full-attention-indices"], causal["block-size"]) == (1, (1,), 8)
    assert {"sample-from-anchor", "no-sliding-window-non-causal", "causal"} <= causal.keys()
    near = options_of(order(data, kind=DrafterKind.DSPARK, windows=(4, 4), draft_vocab=9, **small), lessons, (2, 4, 6))
    assert (near["sliding-window"], near["block-size"], near["draft-vocab-size"]) == (4, 7, 9)
    assert "full-attention-indices" not in near and "sample-from-anchor" in near


def test_an_unfinished_run_of_another_order_is_told_from_this_one(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    open_work(order(data, out, held_out=3))
    with pytest.raises(InvalidRequest, match=r"something else \(epochs was 5 and is 3, held_out was 3 and is 2\)"):
        open_work(order(data, out, held_out=2, epochs=3))
    assert open_work(order(data, out, held_out=3)) == (out / WORK, True)
    data.write_text('{"prompt": "else"}\n' * 2)
    with pytest.raises(InvalidRequest, match=r"something else \(data: other files\)"):
        open_work(order(data, out, held_out=3))


def test_what_is_wrong_with_an_order_is_found_before_the_folder_is_made(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--held-out"):
        train_head(order(data, tmp_path / "head", held_out=8), print, unmetered_job)
    assert not (tmp_path / "head").exists()


def test_an_out_folder_that_cannot_be_made_is_named(data: Path) -> None:
    with pytest.raises(InvalidRequest, match="--out: /dev/null/head cannot be made"):
        open_work(order(data, Path("/dev/null/head")))


def test_what_is_left_out_of_the_data_is_counted_and_said(data: Path, tmp_path: Path) -> None:
    data.write_text(data.read_text() + json.dumps({"prompt": "number " * 90}) + "\n")
    heard: list[str] = []
    out = tmp_path / "head"
    told = order(data, out, max_length=64, max_new_tokens=8, depth=2, epochs=1)
    train_head(told, heard.append, unmetered_job)
    said = "1 prompts are too long for texts of 64 tokens (--max-length) and are left out."
    assert said in heard and said in (out / "README.md").read_text()


def test_too_little_data_says_how_much_there_is(tmp_path: Path) -> None:
    data = tmp_path / "one.txt"
    data.write_text("import os, sys, json, re, time, math, random, string, types, enum\n" * 2)
    with pytest.raises(InvalidRequest, match="--data: holds 1 usable texts"):
        train_head(order(data, tmp_path / "head"), print, unmetered_job)


def test_every_kind_that_is_trained_is_one_of_a_head() -> None:
    assert all(kind.is_head for kind in KINDS)
    with pytest.raises(Unsupported, match="expected eagle3"):
        order(Path(__file__), Path("head"), kind=DrafterKind.NGRAM)
