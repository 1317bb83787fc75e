"""A conversation with a real cluster: the alphabet's target answers with the letters that follow the last one of a question."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from specsplit.cli.local import LocalCluster
from tests.support.terminal import CTRL_C, CTRL_D, at_terminal
from tests.support.toys import alphabet_target
from tests.system.conftest import PACED, empty, eventually, letters

CONTEXT = 4_096
CHAT = [sys.executable, "-m", "specsplit", "chat", "--address"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Steps of 20 ms: without drafts an answer that fills the context takes more than a minute, in which it can be cancelled."""
    target = alphabet_target(tmp_path_factory.mktemp("target"), max_context=CONTEXT)
    paced = {**PACED, "paced_step_base_ms": 20.0}
    with LocalCluster(target, drafters=["ngram"], verifier=paced) as cluster:
        yield cluster


def test_through_a_pipe_every_line_is_answered_and_one_that_is_too_long_is_told_and_not_kept(
    cluster: LocalCluster,
) -> None:
    lines = ["abc", "/drafter none", "k", "x" * CONTEXT, "/stats", "hello!"]
    done = subprocess.run(
        [*CHAT, cluster.address, "--max-tokens", "5"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1, "one of them failed"
    assert done.stdout == f"{letters('c', 5)}\n{letters('k', 5)}\n", "after ! the model says nothing"
    told = done.stderr.splitlines()
    assert f"is {CONTEXT + 14} tokens long; the context holds {CONTEXT}" in done.stderr, "with all that was said before"
    assert any(
        line.endswith("the question is not kept: /undo takes the last turn back, /reset begins anew") for line in told
    )
    assert any(line.startswith("The conversation: 2 answers, 10 tokens in ") for line in told)
    assert told[-1].startswith("The conversation: 2 answers"), "an answer that ended by itself needs no word"


def test_at_a_terminal_an_answer_is_cancelled_and_the_conversation_goes_on(cluster: LocalCluster) -> None:
    with at_terminal([*CHAT, cluster.address, "--drafter", "none"]) as terminal:
        terminal.until(f"with a context of {CONTEXT:,} tokens.")
        terminal.until("\n> ")
        terminal.press("abc\r")
        terminal.until(f"\n{letters('c', 5)}")
        terminal.press(CTRL_C)
        terminal.until("Cancelled; what has come is kept.\n> ")
        with cluster.client() as client:
            eventually(lambda: empty(client.cluster()))
        terminal.press("/stats\r")
        terminal.until("There is no finished answer yet. 1 turn of the conversation is kept.\n> ")
        terminal.press("wow!\r")
        terminal.until("\n> ")
        terminal.press("/stats\r")
        terminal.until("2 turns of the conversation are kept.\n> ")
        terminal.press(CTRL_D)
        terminal.until("Goodbye.\n")
        assert terminal.wait() == 0
