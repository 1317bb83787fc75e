"""The `gpu` benchmark where there is no GPU: its parts at their smallest, and what becomes of one that hangs, fails or finds no room."""

from __future__ import annotations

import fcntl
import json
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks import context
from benchmarks.gpu import command
from benchmarks.gpu.aims import AIMS
from benchmarks.gpu.card import problem
from benchmarks.gpu.child import GRACE_S, Order, run
from benchmarks.gpu.findings import Figure, Findings, Skipped
from benchmarks.gpu.job import QUICK, Job
from benchmarks.gpu.kernels import kernels
from benchmarks.gpu.pair import ALONE, HIT, HIT_WAITED, MISS, device_spans, gaps_of, pair
from benchmarks.gpu.parity import KINDS, ROOT, chosen, counted, failed, gpu_tests, skipped
from benchmarks.gpu.parts import PARTS, part
from benchmarks.gpu.rates import rates
from benchmarks.gpu.table import NO_GPU, report
from benchmarks.gpu.targets import CONFIGS, write_config
from benchmarks.gpu.verify import Bytes, verify
from benchmarks.gpu.wide import widen
from benchmarks.lab.ledger import covered_s
from specsplit.cli.folders import drafts_beside
from specsplit.clock import SystemClock
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.native import library
from specsplit.settings import DrafterSettings
from specsplit.speculation import Draft
from specsplit.values import DrafterKind, Plan
from specsplit_drafter.edge.service import load_proposer
from specsplit_verifier.records.step import Reroot, SessionResult, StepResult
from tests.support.rounding import assert_same_sums

MODELS = Path(__file__).parents[2] / "models" / "pocket"
SMALL = replace(QUICK, tree_tokens=(1, 16), committed=20, repeats=1, copy_bytes=(1 << 12,), new=9)


def job(findings: Findings, **scale: object) -> Job:
    return Job("cpu", replace(SMALL, **scale), MODELS, time.monotonic() + 100, findings)  # pyright: ignore[reportArgumentType]


def step(started: float, forward_ms: float, *, hit: bool | None = None, waited_us: float = 0.0, prompt: int = 0) -> StepResult:  # fmt: skip
    session = SessionResult(
        1, Plan(1, 1, 2, 0), Draft.root_alone(1, 1), (0,), 1, True, None, None, reroot=Reroot(hit=hit)
    )
    return StepResult(
        tokens=1, kv_tokens=1, prefill_tokens=prompt, recomputed_tokens=0, began=started, started=started, ended=started,
        waited_us=waited_us, forward_us=forward_ms * 1e3, host_us=0.0, sessions=(session,),
    )  # fmt: skip


def test_a_host_gap_is_from_one_step_to_the_next_less_the_forward_by_what_came_before_it() -> None:
    made = [
        step(1.0, 10.0, prompt=5),  # a gap behind a prompt is not counted
        step(2.0, 10.0, hit=True),
        step(2.010_1, 10.0, hit=True),
        step(2.030_1, 10.0, hit=False, waited_us=4e3),
        step(2.040_3, 10.0),
        step(2.050_7, 10.0),
    ]
    found = gaps_of(made)
    assert {kind: [round(each) for each in gaps] for kind, gaps in found.items()} == {
        HIT: [100], HIT_WAITED: [10_000], MISS: [200], "host gap": [400],
    }  # fmt: skip


def test_what_a_device_did_at_once_counts_once() -> None:
    kinds = [
        ("kernel", 0, 10),
        ("gpu_memcpy", 5, 10),
        ("cpu_op", 0, 100),
        ("kernel", 20, 1),
        ("gpu_memset", 20.25, 0.5),
    ]
    events = [{"cat": kind, "ts": start, "dur": length} for kind, start, length in kinds]
    assert covered_s(list(device_spans(events))) == 16.0


def test_the_outcomes_of_tests_are_counted_with_workers_and_without_and_not_again_in_the_summary() -> None:
    lines = [
        "tests/gpu/test_a.py::test_b[PASSED] PASSED                     [ 50%]",
        "tests/gpu/test_a.py::test_c FAILED                             [100%]",
        "[gw0] [  7%] PASSED tests/gpu/test_a.py::test_b ",
        "[gw1] [ 14%] SKIPPED tests/gpu/test_a.py::test_d ",
        "SKIPPED [1] tests/gpu/test_a.py:29: there is no such card",
        "FAILED tests/gpu/test_a.py::test_c - AssertionError",
    ]
    assert skipped(lines) == [("1 tests at tests/gpu/test_a.py:29", "there is no such card")]
    assert failed(lines) == ["tests/gpu/test_a.py::test_c - AssertionError"]
    assert counted(lines) == {"PASSED": 2, "FAILED": 1, "SKIPPED": 1}


def test_every_file_with_tests_that_need_a_gpu_is_in_one_part() -> None:
    of_parts = [file for kind in (*KINDS, "") for file in chosen(kind)]
    assert sorted(of_parts) == gpu_tests() and len({*of_parts}) == len(of_parts)
    assert {*map(str, (ROOT / "tests/gpu").glob("test_*.py"))} <= {str(ROOT / file) for file in of_parts}


def test_all_parts_together_take_no_longer_than_a_run_may() -> None:
    assert sum(each.most_s for each in PARTS if each.gpu) <= command.SECONDS


def ordered(tmp_path: Path, program: str, seconds: float) -> Findings:
    order = Order("copy", "cpu", True, "", time.monotonic() + seconds, str(tmp_path / "found.jsonl"))
    return run(order, [sys.executable, "-c", f"path = {str(tmp_path / 'found.jsonl')!r}\n{program}"])


WRITES = """
import json, subprocess, sys, time
with open(path, "a") as lines:
    lines.write(json.dumps(["figure", {"part": "copy", "what": "a", "name": "b", "value": 1.0}]) + "\\n")
    lines.write('["figure", {"part": "co')
"""


def test_a_part_that_hangs_is_stopped_with_all_that_it_started_and_keeps_what_it_has(tmp_path: Path) -> None:
    held = tmp_path / "held"
    heir = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], pass_fds=[held.fileno()])"
    hangs = f"import fcntl\nheld = open({str(held)!r}, 'w')\nfcntl.flock(held, fcntl.LOCK_EX)\n{heir}\ntime.sleep(600)"
    found = ordered(tmp_path, WRITES + hangs, 3.0 - GRACE_S)
    assert found.figures == [Figure("copy", "a", "b", 1.0)]
    (skip,) = found.skips
    assert skip.part == "copy" and "it was stopped after 3 s" in skip.why
    with held.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits until all who hold it are gone


def test_a_part_that_fails_is_told_of_with_its_error(tmp_path: Path) -> None:
    found = ordered(
        tmp_path, f"{WRITES}\nimport atexit; atexit.register(print, 'noise')\nraise ValueError('no room')", 60
    )
    assert found.figures == [Figure("copy", "a", "b", 1.0)]
    assert "it ended with status 1: ValueError: no room" in found.skips[0].why


def test_a_part_writes_what_it_finds_at_once_and_another_process_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    writer, reader = Findings.writing_to(path, "copy"), Findings()
    writer.figures_of("a", "b", [1.0, 2.0, 3.0], "ms")
    writer.skipped("c", "why")
    writer.fact("device", "CPU")
    reader.take(path.read_text().splitlines())
    assert (reader.figures, reader.skips, reader.facts) == (writer.figures, writer.skips, {"device": "CPU"})


def test_steps_of_a_target_with_random_weights_are_measured_and_compared_with_the_memory_floor() -> None:
    findings = Findings("verify tiny")
    verify(job(findings), "tiny")
    names = {figure.name for figure in findings.figures}
    assert {aim.name for aim in AIMS if aim.part.startswith("verify")} <= names
    assert findings.skips == [] and findings.facts == {"attention of tiny": "torch" if library.obstacle() else "native"}


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_reads_all_weights_once_but_for_embeddings_that_are_only_looked_up(tmp_path: Path, tied: bool) -> None:
    config = CONFIGS["tiny"].to_dict() | {"tie_word_embeddings": tied}
    folder = write_config("tiny", tmp_path)
    (folder / "config.json").write_text(json.dumps(config, default=str))
    target = CausalLM.load(folder, num_pages=4, page_size=16, random_weights=True, cpu_layers=False)
    attention, mlp, norms = 64 * (4 + 2 + 2) * 16 + 64 * 64, 3 * 64 * 128, 2 * 64
    assert Bytes.of(target) == Bytes(4 * (2 * (attention + mlp + norms) + 64 + 256 * 64), 4 * 2 * 2 * 2 * 16)


def test_models_with_wider_heads_compute_the_same(tmp_path: Path) -> None:
    wide = widen(MODELS, tmp_path / "wide")
    for name in ("target", "draft"):
        lm, wider = (CausalLM.load(folder / name, num_pages=8, page_size=16) for folder in (MODELS, wide))
        tokens, parents = [5, 700, 3, 44, 8, 1000, 12], [-1, 0, 1, 1, 0, 4, 2]
        found: list[torch.Tensor] = []
        for each in (lm, wider):
            table = PageTable(each.pool)
            table.reserve(47)
            each.forward([Row.chunk(range(100, 140), table.upto(40))])
            found.append(each.forward([Row.tree(tokens, parents, table.upto(47))]))
        assert wider.kv.data.shape[-1] == 64
        assert_same_sums(found[1], found[0])
    drafts = drafts_beside(wide / "target")
    assert {*drafts} == {*drafts_beside(MODELS / "target")}
    for kind, folder in drafts.items():
        target = wide / "target" if kind.is_head else None
        load_proposer(DrafterSettings(kind=kind, model=folder, target=target, kv_tokens=256), SystemClock())


def test_a_verifier_and_a_drafter_are_looked_at_step_by_step() -> None:
    findings = Findings("pair")
    pair(job(findings, pairs=(DrafterKind.NGRAM,)))
    assert {figure.what for figure in findings.figures} == {ALONE, "ngram"}
    assert findings.find("pair", ALONE, "host gap") and findings.find("pair", "ngram", "hits")
    assert findings.skips == []


@pytest.mark.usefixtures("forked")
def test_tokens_per_second_are_those_of_every_way_on_the_same_device() -> None:
    findings = Findings("rates")
    rates(job(findings, kinds=(DrafterKind.EAGLE3,)))
    (aim,) = (aim for aim in AIMS if aim.part == "rates")
    assert findings.find("rates", aim.what, aim.name) is not None
    same = [figure.value for figure in findings.figures if figure.name == "texts as generate's"]
    assert same == [1.0] * 4, "float32: every way writes generate's text"
    assert findings.skips == []


def test_where_no_kernels_can_be_had_all_parts_are_told_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = Findings("kernels")
    kernels(job(findings))
    assert findings.facts == {"attention": "torch"}
    assert [skip.what for skip in findings.skips] == ["attention = flashinfer", "attention = triton"]
    told: list[dict[str, str]] = []

    def ran(order: Order) -> Findings:
        told.append(order.settings)
        return Findings(order.part, facts={"attention": "torch"} if order.part == "kernels" else {})

    monkeypatch.setattr(command, "run", ran)
    monkeypatch.setattr(command, "PARTS", tuple(part(name) for name in ("kernels", "pair", "rates")))
    options = Namespace(device="cuda", quick=True, seconds=500.0, set=[("dtype", "float16")], models=MODELS)
    kept: list[Findings] = []
    command.Run(options, Console(quiet=True), time.monotonic() + 500, kept.append).all(None)
    assert told == [{"dtype": "float16"}, *[{"attention": "torch", "dtype": "float16"}] * 2]
    assert len(kept) == 3, "what there is is kept behind every part"


def test_when_the_time_is_over_what_was_not_measured_is_told() -> None:
    findings = Findings("verify tiny")
    verify(replace(job(findings), until=time.monotonic() - 1), "tiny")
    assert [skip.what for skip in findings.skips] == ["tiny, 1 token", "tiny, 16 tokens"]
    assert findings.find("verify tiny", "tiny", "step / memory floor") is None


def test_aims_stand_beside_what_was_measured_and_where_nothing_was_the_table_says_so() -> None:
    findings = Findings()
    findings.figures.append(Figure("verify 8B", "8B", "step / memory floor", 1.3))
    findings.figures.append(Figure("verify 8B", "8B", "16 tokens / 1 token", 1.05))
    findings.skips.append(Skipped("pair", "everything", "no time"))
    made = report(findings, {}, {}, cpu=False)
    found = {(row["what"], row["name"]): (row["value"], row["aim"], row["met"]) for row in made.rows}
    assert found["8B", "step / memory floor"] == (1.3, "≤ 1.25", "no")
    assert found["8B", "16 tokens / 1 token"] == (1.05, "≤ 1.1", "yes")
    assert found["eagle3", HIT] == ("not measured", "≤ 100", "not measured")
    assert made.name == "gpu" and "Skipped in pair: everything: no time." in made.notes
    assert {aim.part for aim in AIMS} <= {each.name for each in PARTS}


@pytest.mark.slow
def test_a_run_on_a_cpu_says_that_it_is_no_gpu_figure_and_leaves_the_docs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "WORK", tmp_path / "WORK")
    for name in ("RESULTS", "QUICK_RESULTS"):
        monkeypatch.setattr(context, name, tmp_path / name)
    monkeypatch.setattr(
        command, "PARTS", (part("parity graphs"), part("verify tiny"), replace(part("rates"), least_s=1e6))
    )
    with pytest.raises(SystemExit) as ended:
        command.main(["--device", "cpu", "--quick", "--models", str(MODELS), "--set", "attention=torch"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("NO GPU FIGURES")
    assert "parity graphs: skipped: it needs a GPU" in printed and "rates: skipped: of 520 s there are" in printed
    written = (tmp_path / "QUICK_RESULTS" / "gpu_on_cpu.md").read_text()
    assert NO_GPU in written and "step of 16 tokens" in written and "attention torch" in written
    assert not (tmp_path / "RESULTS").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_ends_at_once_and_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([])
    assert ended.value.code == 2
    assert f"there is no CUDA device: torch {torch.__version__}" in capsys.readouterr().err
    assert problem("cpu") is None
    with pytest.raises(SystemExit):
        command.main(["--device", "cpu"])
    assert "say --quick" in capsys.readouterr().err
