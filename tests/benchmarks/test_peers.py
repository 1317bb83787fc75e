"""The benchmark of other engines: whole processes of transformers and of this project on small models, and texts that differ."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from subprocess import PIPE

import pytest
from rich.console import Console

from benchmarks.context import Context
from benchmarks.peers.command import LOOKUP, measure, there
from benchmarks.peers.peer import Peer, Timed, tree_of
from benchmarks.peers.serving import Cannot, Prompts, answer
from benchmarks.peers.table import EIGHT, SINGLE, Results, agreement, beginning, disagreements, rows_of

MODELS = Path("models/pocket").resolve()
TARGET, DRAFT = MODELS / "target", MODELS / "draft"
PYTHON = Path(sys.executable)


def small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *peers: Peer) -> tuple[list[str], list[dict[str, str]]]:
    """What must not be, and the rows, of a run with two prompts."""
    monkeypatch.chdir(tmp_path)
    context = Context(Path(), quick=True, machine={}, console=Console(quiet=True))
    failures = measure(context, peers, TARGET, 1, count=2, new=6, threads=1)
    return failures, json.loads((tmp_path / "build/results/peers.json").read_text())["rows"]


@pytest.mark.slow
def test_engines_write_the_same_texts_and_what_one_cannot_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = [
        Peer("transformers", "transformers_child", PYTHON, TARGET),
        Peer("transformers" + LOOKUP, "transformers_child", PYTHON, TARGET, drafts=True),
        Peer("specsplit" + LOOKUP, "specsplit_child", PYTHON, TARGET, drafts=True),
        Peer("broken", "transformers_child", PYTHON, tmp_path),
    ]
    failures, rows = small_run(tmp_path, monkeypatch, *peers)
    assert failures == []
    assert [row["texts"] for row in rows] == ["2 of 2"] * 3
    assert [row[EIGHT] == "-" for row in rows] == [False, True, False]
    assert all(row[SINGLE] != "-" for row in rows)


def test_an_engine_with_other_weights_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = [
        Peer("transformers", "transformers_child", PYTHON, TARGET),
        Peer("another", "transformers_child", PYTHON, DRAFT),
    ]
    failures, rows = small_run(tmp_path, monkeypatch, *peers)
    assert failures == ["another wrote other texts to prompts 0, 1."]
    assert [row["peer"] for row in rows] == ["transformers", "another"]


RESTLESS = """
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "input()"])
print(child.pid, flush=True)
threading.Thread(target=input, daemon=True).start()
while threading.active_count() > 1:
    threading.Thread(target=int).start()
child.kill()
"""


def test_a_process_whose_threads_end_is_counted_with_all_below_it() -> None:
    with subprocess.Popen([PYTHON, "-c", RESTLESS], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        child = int(process.stdout.readline())
        found = [list(tree_of(process.pid)) for _ in range(2000)]
        process.kill()
    assert all(each == [process.pid, child] for each in found)


def test_what_has_not_been_made_is_named(tmp_path: Path) -> None:
    console = Console(record=True, file=StringIO())
    peer = Peer("vLLM", "vllm_child", tmp_path / "no" / "python", TARGET)
    assert list(there([peer], Context(Path(), quick=True, machine={}, console=console))) == []
    assert "left out: vLLM: there is no" in console.export_text()


def test_prompts_are_written_so_many_at_once_and_a_refusal_is_told() -> None:
    asked: list[int] = []

    def write(prompts: Prompts, new: int) -> list[list[int]]:
        asked.append(len(prompts))
        if len(prompts) > 2:
            raise Cannot("two at most")
        return [[prompt[0]] * new for prompt in prompts]

    prompts = [[1], [2], [3]]
    assert answer(write, prompts, 2, 2)["texts"] == [[1, 1], [2, 2], [3, 3]]
    assert asked == [2, 1]
    assert answer(write, prompts, 2, 3) == {"cannot": "two at most"}


def results(name: str, *texts: list[int], exact: bool = True, rates: list[float] | None = None) -> Results:
    peer = Peer(name, "", Path(), Path(), exact=exact)
    return Results(peer, 1.0, rates={SINGLE: rates or []}, texts=[list(texts)])


def test_of_rounded_weights_is_shown_how_far_texts_agree_and_nothing_is_a_failure() -> None:
    own = [[1, 2, 3, 4], [5, 6, 7, 8]]
    exact, rounded = (
        results("exact", [1, 2, 3, 4], [5, 0, 7, 8]),
        results("Q8", [1, 2, 3, 4], [5, 6, 0, 8], exact=False),
    )
    assert beginning([5, 6, 0, 8], own[1]) == 2
    assert (agreement(exact, own), agreement(rounded, own)) == ("1 of 2", "1 of 2, 75 % of a text")
    assert disagreements([exact, rounded], own) == ["exact wrote other texts to prompts 1."]


def test_a_text_that_differs_in_one_run_of_several_is_no_agreement() -> None:
    mine = results("mine", [1, 2])
    mine.take(EIGHT, 2, Timed(1.0, [[1, 3]]), counts=False)
    assert agreement(mine, [[1, 2]]) == "0 of 1"
    assert mine.rates == {SINGLE: []}


def test_a_rate_is_compared_with_the_others_in_the_same_round() -> None:
    slow, fast = results("slow", [1], rates=[1.0, 10.0, 2.0]), results("fast", [1], rates=[2.0, 20.0, 4.0])
    rows = rows_of([slow, fast], [[1]], {"slow": "fast", "fast": "fast"})
    assert [row[f"{SINGLE} of"] for row in rows] == ["0.50 (0.50..0.50)", "1.00 (1.00..1.00)"]
    assert rows[0][EIGHT] == "-"
