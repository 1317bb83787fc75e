"""Targets whose layers see windows and chunks, cap their scores, have sinks and differ: the text is transformers' own with any drafter."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from specsplit.cli.local import LocalCluster
from tests.model.conftest import CONFIGS, OTHER_LAYERS, RECURRENT
from tests.support.greedy import greedy_texts
from tests.support.slow import slowly
from tests.support.toys import VOCAB, write_byte_tokenizer
from tests.system.conftest import SERIAL

NEW_TOKENS = 200
LAYERS = "layers that differ"
"""They have windows and sinks too."""
PROMPTS = [[(7 * index * index + 3 * start) % 250 for index in range(12 + 5 * start)] for start in range(4)]


ALL = {**OTHER_LAYERS, **RECURRENT}


def write_model(folder: Path, config: PretrainedConfig) -> Path:
    config.vocab_size, config.eos_token_id = VOCAB, None
    torch.manual_seed(4)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module", params=[LAYERS, *slowly(*(name for name in ALL if name != LAYERS))])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp(request.param.replace(" ", "-")), ALL[request.param]())


@pytest.fixture(scope="module")
def draft(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target itself, or, where that has states, a model that knows nothing of it."""
    if folder.name.rstrip("0123456789").replace("-", " ") not in RECURRENT:
        return folder
    return write_model(tmp_path_factory.mktemp("draft"), CONFIGS["llama"]())


@pytest.fixture(scope="module")
def references(folder: Path) -> list[tuple[int, ...]]:
    """What transformers writes behind each prompt."""
    texts = greedy_texts(folder, PROMPTS, NEW_TOKENS)
    return [tuple(text[len(prompt) :]) for text, prompt in zip(texts, PROMPTS, strict=True)]


@pytest.fixture(scope="module")
def cluster(folder: Path, draft: Path) -> Iterator[LocalCluster]:
    """Too few pages for all four sessions at once, so that some are preempted; and too few window pages, where layers have these."""
    pool = {"kv_tokens": 512, "window_kv_tokens": 128, "metrics_listen": ""}
    with LocalCluster(folder, draft, drafters=["standalone", "ngram"], verifier=pool) as started:
        yield started


@pytest.mark.parametrize("drafter", ["none", "ngram", "standalone"])
def test_greedy_text_is_what_transformers_writes(
    cluster: LocalCluster, folder: Path, draft: Path, references: list[tuple[int, ...]], drafter: str
) -> None:
    with cluster.client() as client, ThreadPoolExecutor(len(PROMPTS)) as pool:
        results = list(
            pool.map(
                lambda prompt: client.generate(
                    prompt, max_tokens=NEW_TOKENS, ignore_eos=True, drafter=drafter, plan=SERIAL, timeout_s=120
                ),
                PROMPTS,
            )
        )
    assert [result.tokens for result in results] == references
    if drafter == "standalone" and draft == folder:
        assert sum(result.speculation.accepted for result in results) > len(PROMPTS) * NEW_TOKENS // 3
