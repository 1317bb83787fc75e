"""The `gpu` benchmark where there is no GPU: its parts at their smallest, and what becomes of one that hangs, fails or finds no room."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import context
from benchmarks.gpu import command
from benchmarks.gpu import kernels as gpu_kernels
from benchmarks.gpu.aims import AIMS
from benchmarks.gpu.budget import ATTENTION, ELEMENTWISE, FLOOR, HOST, PRODUCTS, STEP
from benchmarks.gpu.card import problem
from benchmarks.gpu.child import GRACE_S, Order, run
from benchmarks.gpu.findings import Figure, Findings, Skipped
from benchmarks.gpu.job import DRY, Job
from benchmarks.gpu.kernels import kernels
from benchmarks.gpu.pair import ALONE, HIT, HIT_WAITED, MISS, gaps_of, pair
from benchmarks.gpu.parity import KINDS, ROOT, chosen, counted, failed, gpu_tests, skipped
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.rates import rates
from benchmarks.gpu.table import NO_GPU, report
from benchmarks.gpu.targets import CONFIGS, write_config
from benchmarks.gpu.verify import Bytes, verify
from benchmarks.gpu.wide import widen
from specsplit.cli.folders import drafts_beside
from specsplit.clock import SystemClock
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.attention import choosing
from specsplit.model.attention.choosing import ON_A_GPU
from specsplit.model.attention.torch_attention import TorchAttention
from specsplit.model.native import library
from specsplit.settings import DrafterSettings
from specsplit.speculation import Draft
from specsplit.values import DrafterKind, Plan
from specsplit_drafter.edge.service import load_proposer
from specsplit_verifier.records.step import Reroot, SessionResult, StepResult
from tests.support.rounding import assert_same_sums

MODELS = Path(__file__).parents[2] / "models" / "pocket"
SMALL = replace(DRY, tree_tokens=(1, 16), committed=20, repeats=1, copy_bytes=(1 << 12,), new=9)


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
    assert sum(each.most_s for each in PARTS) <= command.SECONDS


def ordered(tmp_path: Path, program: str, seconds: float) -> Findings:
    order = Order("machine", "cpu", "dry", "", time.monotonic() + seconds, str(tmp_path / "found.jsonl"))
    return run(order, [sys.executable, "-c", f"path = {str(tmp_path / 'found.jsonl')!r}\n{program}"])


WRITES = """
import json, subprocess, sys, time
with open(path, "a") as lines:
    lines.write(json.dumps(["figure", {"part": "machine", "what": "a", "name": "b", "value": 1.0}]) + "\\n")
    lines.write('["figure", {"part": "co')
"""


def test_a_part_that_hangs_is_stopped_with_all_that_it_started_and_keeps_what_it_has(tmp_path: Path) -> None:
    held = tmp_path / "held"
    heir = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], pass_fds=[held.fileno()])"
    hangs = f"import fcntl\nheld = open({str(held)!r}, 'w')\nfcntl.flock(held, fcntl.LOCK_EX)\n{heir}\ntime.sleep(600)"
    found = ordered(tmp_path, WRITES + hangs, 3.0 - GRACE_S)
    assert found.figures == [Figure("machine", "a", "b", 1.0)]
    (skip,) = found.skips
    assert skip.part == "machine" and skip.broke and "it was stopped after 3 s" in skip.why
    with held.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits until all who hold it are gone


HOLDS = """
import fcntl, time
held = open({held!r}, "w")
fcntl.flock(held, fcntl.LOCK_EX)
held.write("held")
held.flush()
time.sleep(600)
"""
RUNS = """
import sys
from benchmarks.gpu.child import Order, end_in_order, run
end_in_order()
run(Order("machine", "cpu", "dry", "", {until}, {found!r}), [sys.executable, "-c", {part!r}])
"""


def test_who_is_told_to_end_leaves_no_part_behind(tmp_path: Path) -> None:
    held = tmp_path / "held"
    part, found = HOLDS.format(held=str(held)), str(tmp_path / "found.jsonl")
    program = RUNS.format(until=time.monotonic() + 600, found=found, part=part)
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as process:
        while not (held.exists() and held.read_text()):
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    with held.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits until who holds it is gone


def test_a_part_that_fails_is_told_of_with_its_error(tmp_path: Path) -> None:
    found = ordered(
        tmp_path, f"{WRITES}\nimport atexit; atexit.register(print, 'noise')\nraise ValueError('no room')", 60
    )
    assert found.figures == [Figure("machine", "a", "b", 1.0)]
    assert "it ended with status 1: ValueError: no room" in found.skips[0].why


def test_a_part_writes_what_it_finds_at_once_and_another_process_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    writer, reader = Findings.writing_to(path, "machine"), Findings()
    writer.figures_of("a", "b", [1.0, 2.0, 3.0], "ms")
    writer.skipped("c", "why")
    writer.fact("device", "CPU")
    reader.take(path.read_text().splitlines())
    assert (reader.figures, reader.skips, reader.facts) == (writer.figures, writer.skips, {"device": "CPU"})


def test_steps_of_a_target_with_random_weights_are_measured_and_compared_with_the_memory_floor() -> None:
    findings = Findings("verify 8B")
    verify(job(findings), "8B")
    names = {figure.name for figure in findings.figures}
    assert {aim.name for aim in AIMS if aim.part.startswith("verify")} <= names
    assert findings.skips == [] and findings.facts == {"attention of 8B": "torch" if library.obstacle() else "native"}


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


def test_attention_is_decided_on_once_by_what_was_measured() -> None:
    findings = Findings("kernels")
    kernels(job(findings))
    had = [] if library.obstacle() else ["native"]
    decided = findings.facts["attention"]
    assert isinstance(decided, list) and sorted(decided) == [*had, "torch"]
    assert [skip.what for skip in findings.skips][:2] == ["attention = flashinfer", "attention = triton"]


@pytest.mark.parametrize(("took", "chosen"), [((2.0, 1.0), "triton"), ((1.0, 2.0), "flashinfer")])
def test_of_what_can_be_had_the_faster_comes_first(
    took: tuple[float, float], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Attention(TorchAttention):
        seconds = 0.0

    made = {name: type(name, (Attention,), {"seconds": each}) for name, each in zip(ON_A_GPU, took, strict=True)}
    for each in (choosing, gpu_kernels):
        monkeypatch.setattr(each, "BACKENDS", made)
    monkeypatch.setattr(choosing, "obstacle_over", lambda *_: None)
    monkeypatch.setattr(gpu_kernels, "require_backend", lambda *_: None)
    monkeypatch.setattr(gpu_kernels, "ELSEWHERE", ())
    monkeypatch.setattr(gpu_kernels, "step_seconds", lambda backend, *_: backend.seconds)
    findings = Findings("kernels")
    kernels(job(findings))
    assert findings.facts == {"attention": sorted(ON_A_GPU, key=lambda name: name != chosen)}
    figures = {figure.what: figure.value for figure in findings.figures if "attention of a step" in figure.name}
    assert figures == {name: 1e3 * each for name, each in zip(ON_A_GPU, took, strict=True)}


@pytest.mark.parametrize(
    ("attention", "settings", "why"),
    [
        ((), {}, "the part kernels did not say what there is"),
        (("triton",), {}, "triton is all that can be had"),
        (("flashinfer", "triton"), {"attention": "torch"}, "torch is set"),
    ],
)
def test_where_there_is_no_other_attention_it_is_said_why(
    attention: Sequence[str], settings: dict[str, str], why: str
) -> None:
    findings = Findings("verify 8B other")
    verify(replace(job(findings), attention=attention, settings=settings), "8B", other=True)
    assert findings.skips == [Skipped("verify 8B other", "8B", f"there is no other attention: {why}")]


ISSUED = (
    "machine", "kernels", "parity triton", "parity graphs", "parity flashinfer", "parity others", "verify 8B",
    "verify 8B unfused", "verify 8B other", "verify 8B other unfused", "profile", "pair", "rates", "verify pocket", "verify 1B",
)  # fmt: skip
"""What is right before what is fast, and kernels before both."""


def dry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run the command, its files in a folder; the exit status."""
    monkeypatch.setattr(command, "WORK", tmp_path / "WORK")
    for name in ("RESULTS", "QUICK_RESULTS"):
        monkeypatch.setattr(context, name, tmp_path / name)
    with pytest.raises(SystemExit) as ended:
        command.main(["--dry", "--models", str(MODELS), *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_parts_come_in_order_and_what_there_is_stands_in_the_report_behind_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One finds figures, one only facts of what it found, one breaks, one leaves everything out, one says nothing at all."""
    report_of = tmp_path / "QUICK_RESULTS" / "gpu_dry.md"
    orders, reports = list[Order](), list[str]()

    def ran(order: Order) -> Findings:
        reports.append(report_of.read_text() if orders else "")
        orders.append(order)
        found = Findings(order.part)
        match order.part:
            case "kernels":
                found.figure("all", "kernels", 1.0)
                found.fact("attention", ["triton", "flashinfer"])
            case "parity triton":
                found.figure("pytest -m gpu", "failed", 1)
                found.fact("failed tests of parity triton", ["tests/gpu/test_b.py::test_c - AssertionError"])
            case "verify 8B":
                found.skipped("all", "it ended with status 1: no room", broke=True)
            case "pair":
                found.skipped("all", "there is no drafter")
            case "rates":
                pass
            case _:
                found.figure("of this", "found", 1.0)
        return found

    monkeypatch.setattr(command, "run", ran)
    assert dry(tmp_path, monkeypatch, "--set", "dtype=float16") == 1
    assert tuple(order.part for order in orders) == ISSUED == tuple(part.name for part in PARTS)
    assert [order.attention for order in orders] == [(), (), *[["triton", "flashinfer"]] * (len(PARTS) - 2)]
    assert all(order.settings == {"dtype": "float16"} and order.scale == "dry" for order in orders)
    for number, text in enumerate([*reports[1:], report_of.read_text()]):
        told = [name for name in ISSUED if f"| {name} |" in text or f"Skipped in {name}: " in text]
        assert told == list(ISSUED[: number + 1]), "every part up to this one, and none behind it"
    printed = capsys.readouterr().out
    assert printed.splitlines()[-3:] == [
        "FAILED: parity triton: tests/gpu/test_b.py::test_c - AssertionError",
        "FAILED: verify 8B: it ended with status 1: no room",
        "FAILED: rates: it ended without a word",
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dry_run_starts_every_part_and_each_ends_or_skips_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry(tmp_path, monkeypatch) == 0
    printed, text = capsys.readouterr().out, (tmp_path / "QUICK_RESULTS" / "gpu_dry.md").read_text()
    assert printed.startswith("NO GPU FIGURES") and NO_GPU in text and not (tmp_path / "RESULTS").exists()
    assert printed.splitlines()[-1] == "Nothing failed."
    for name in ISSUED:
        assert f"| {name} |" in text or f"Skipped in {name}: " in text, name
    assert "step of 16 tokens" in text and "Skipped in kernels: attention = triton" in text
    for name in (FLOOR, PRODUCTS, ELEMENTWISE, ATTENTION, HOST, STEP):
        assert f"| profile | 8B | {name} |" in text, name
    assert "aten::" in text and " s there are " not in text, "no part was left out for want of time"


def test_when_the_time_is_over_what_was_not_measured_is_told() -> None:
    findings = Findings("verify 8B")
    verify(replace(job(findings), until=time.monotonic() - 1), "8B")
    assert [skip.what for skip in findings.skips] == ["8B, 1 token", "8B, 16 tokens"]
    assert findings.find("verify 8B", "8B", "step / memory floor") is None


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_ends_at_once_and_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([])
    assert ended.value.code == 2
    assert f"there is no CUDA device: torch {torch.__version__}" in capsys.readouterr().err
    assert problem("cpu") is None
    with pytest.raises(SystemExit):
        command.main(["--device", "cpu"])
    assert "say --dry" in capsys.readouterr().err
