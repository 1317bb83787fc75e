"""Greedy, seeded and sampled output is the target's own: the pocket models against transformers, over real processes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from specsplit.cli.local import LocalCluster
from specsplit.client import Client

POCKET = Path("models/pocket")
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 50, 24, 128
KINDS = ["none", "ngram", "standalone"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(POCKET / "target", POCKET / "draft", drafters=["standalone", "ngram"]) as started:
        yield started


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """The beginnings of functions all over the standard library, cut to one length so that transformers needs no padding."""
    tokenizer = AutoTokenizer.from_pretrained(POCKET / "target")
    source = Path(torch.__file__).parent / "nn" / "functional.py"  # never trained on
    pieces = source.read_text().split("\ndef ")[1:]
    encoded = (tokenizer.encode("\ndef " + piece) for piece in pieces)
    chosen = [tokens[:PROMPT_TOKENS] for tokens in encoded if len(tokens) >= PROMPT_TOKENS]
    assert len(chosen) >= PROMPTS
    return chosen[:PROMPTS]


@pytest.fixture(scope="module")
def references(prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """What transformers' own greedy search writes."""
    model = AutoModelForCausalLM.from_pretrained(POCKET / "target", dtype=torch.float32)
    config = GenerationConfig(do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0)
    ids = torch.tensor(prompts)
    with torch.inference_mode():
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)  # pyright: ignore[reportAttributeAccessIssue]
    return [tuple(row[PROMPT_TOKENS:]) for row in output.tolist()]


def write(client: Client, prompt: list[int], drafter: str, **options: float) -> tuple[tuple[int, ...], int]:
    """(tokens, accepted drafts)."""
    result = client.generate(prompt, max_tokens=NEW_TOKENS, ignore_eos=True, drafter=drafter, timeout_s=120, **options)  # pyright: ignore[reportArgumentType]
    return result.tokens, result.speculation.accepted


@pytest.mark.timeout(300)
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("drafter", KINDS)
def test_greedy_text_is_what_transformers_writes(
    cluster: LocalCluster, prompts: list[list[int]], references: list[tuple[int, ...]], drafter: str, batch: int
) -> None:
    with cluster.client() as client, ThreadPoolExecutor(batch) as pool:
        written = list(pool.map(lambda prompt: write(client, prompt, drafter), prompts))
    assert [tokens for tokens, _ in written] == references
    accepted = sum(count for _, count in written)
    assert accepted == 0 if drafter == "none" else accepted > PROMPTS


@pytest.mark.timeout(300)
def test_seeded_text_is_the_same_with_any_drafter_alone_and_in_company(
    cluster: LocalCluster, prompts: list[list[int]]
) -> None:
    some, few = prompts[:8], prompts[:4]
    options = {"temperature": 0.9, "top_k": 200, "top_p": 0.95, "min_p": 0.01, "seed": 2024}
    with cluster.client() as client, ThreadPoolExecutor(8) as pool:
        plain = [write(client, prompt, "none", **options)[0] for prompt in some]
        for drafter in ("ngram", "standalone"):
            alone = [write(client, prompt, drafter, **options) for prompt in few]
            assert [tokens for tokens, _ in alone] == plain[:4]
            assert drafter != "standalone" or sum(accepted for _, accepted in alone) > 0
        for drafter in KINDS:
            together = list(pool.map(lambda prompt, kind=drafter: write(client, prompt, kind, **options), some))
            assert [tokens for tokens, _ in together] == plain
            assert drafter != "standalone" or sum(accepted for _, accepted in together) > 0
