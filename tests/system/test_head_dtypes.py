"""Heads beside a target of other numbers than their own, in processes: a quantised target, and features that come in another dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import product
from pathlib import Path
from shutil import copytree

import pytest
from transformers import AutoTokenizer

from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.client import Result
from tests.model.test_quantised import compressed, packed, quantised
from tests.system.conftest import SERIAL, as_soon_as

TARGET = Path("models/pocket/target")
PROMPT = "import os\nimport sys\n"
"""Behind it the target's first choice is half a logit ahead of its second for 40 tokens, in every dtype: how bfloat16 rounds in a batch of
another size changes no token."""
NEW_TOKENS = 40
QUANTISED, FLOAT32, BFLOAT16 = "quantised", "float32", "bfloat16"
SETUPS = {
    "a float32 head of a quantised target": (QUANTISED, FLOAT32),
    "a bfloat16 head of a quantised target": (QUANTISED, BFLOAT16),
    "a bfloat16 head of a float32 target": (FLOAT32, BFLOAT16),
    "a float32 head of a bfloat16 target": (BFLOAT16, FLOAT32),
}
HEADS = ["eagle3", "dflash", "multi_layer_eagle", "eagle"]
QUICK = {(setup, HEADS[number % 2]) for number, setup in enumerate(SETUPS)}
"""Every setup with one head; each head takes features in another way."""
PAIRS = [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in product(SETUPS, HEADS)]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], LocalCluster]]:
    """Clusters without a drafter, by what their target is."""
    with ExitStack() as running:

        @cache
        def cluster(target: str) -> LocalCluster:
            folder, dtype = TARGET, target
            if target == QUANTISED:
                folder, dtype = tmp_path_factory.mktemp("quantised") / "target", FLOAT32
                copytree(TARGET, folder)
                quantised(folder, packed, compressed("pack-quantized", "int", bits=4))
            started = LocalCluster(folder, drafts_beside(TARGET), drafters=[], verifier={"dtype": dtype})
            return running.enter_context(started)

        yield cluster


@pytest.mark.parametrize(("setup", "drafter"), PAIRS)
def test_its_drafts_are_accepted_and_the_text_is_the_targets_own(
    clusters: Callable[[str], LocalCluster], setup: str, drafter: str
) -> None:
    target, dtype = SETUPS[setup]
    cluster = clusters(target)
    head = cluster.spawn_drafter(drafter, dtype=dtype)
    cluster.wait_joined()
    prompt = AutoTokenizer.from_pretrained(TARGET).encode(PROMPT)
    with cluster.client() as client:
        wish = {"max_tokens": NEW_TOKENS, "ignore_eos": True}
        alone = client.generate(prompt, drafter="none", **wish)
        asked: list[Result] = []

        def is_drafted() -> bool:
            """A short request may be over before the verifier's stream to a head that has just come is open."""
            asked.append(client.generate(prompt, drafter=drafter, plan=SERIAL, **wish))
            return asked[-1].speculation.drafted > 0

        as_soon_as(is_drafted)
    head.kill()
    drafted = asked[-1]
    assert all(each.tokens == alone.tokens for each in asked)
    assert drafted.done.drafter == head.name
    assert drafted.speculation.accept_length > 2
