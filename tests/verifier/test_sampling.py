"""Sampled output follows the target's own distribution, and scores mean what they say, with a real drafter at the other end."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, AutoTokenizer

from specsplit.sessions import DecodeRequest
from specsplit.values import PlanChanges, Sampling, Stopping
from tests.support.drafting import drafter_process
from tests.support.slow import slowly
from tests.support.toys import random_target
from tests.verifier.conftest import decode, recorded, verifier_over

pytestmark = pytest.mark.usefixtures("forked")

VOCAB = 16
SESSIONS = 900
PROMPT = [3, 7, 1, 3, 7, 1, 3]


async def test_sampled_tokens_follow_the_targets_distribution(tmp_path: Path) -> None:
    folder = random_target(tmp_path, VOCAB)
    async with (
        drafter_process("ngram") as endpoint,
        verifier_over(folder, max_sessions=900, kv_tokens=65536, paced_step_base_ms=2.0) as verifier,
    ):
        # A step waits for drafts, however busy the machine is.
        serial = PlanChanges(draft_ahead=False, wait_budget_us=2_000_000)
        requests = [
            DecodeRequest(str(seed), PROMPT, Sampling(1.0, seed=seed), Stopping(5), serial, drafter=endpoint)
            for seed in range(SESSIONS)
        ]
        limit = asyncio.Semaphore(8)

        async def one(request: DecodeRequest) -> tuple[list[int], int]:
            async with limit:
                tokens, end = await decode(verifier, request)
                return tokens, end.speculation.drafted

        results = await asyncio.gather(*(one(request) for request in requests))
    assert sum(drafted for _, drafted in results) > 100, "the drafter took part"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    firsts = Counter(tokens[0] for tokens, _ in results)
    assert p_value(firsts, distribution(model, PROMPT)) > 0.001
    likeliest, _ = firsts.most_common(1)[0]
    seconds = Counter(tokens[1] for tokens, _ in results if tokens[0] == likeliest)
    assert p_value(seconds, distribution(model, [*PROMPT, likeliest])) > 0.001


def distribution(model: torch.nn.Module, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return torch.softmax(model(torch.tensor([tokens])).logits[0, -1].double(), -1).numpy()


def p_value(counts: Counter[int], probabilities: np.ndarray) -> float:
    """Chi-square, tokens expected fewer than five times taken together."""
    total = sum(counts.values())
    common = [t for t in range(VOCAB) if probabilities[t] * total >= 5]
    observed = [counts[t] for t in common] + [total - sum(counts[t] for t in common)]
    expected = [probabilities[t] * total for t in common]
    expected.append(total - math.fsum(expected))
    if expected[-1] < 1e-6:
        observed, expected = observed[:-1], expected[:-1]
    return float(chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("temperature", slowly(0.0, 1.0))
async def test_predicted_and_observed_survival_agree(temperature: float) -> None:
    pocket, stopping = Path("models/pocket"), Stopping(80, ignore_eos=True)
    # Full trees, however busy the machine, and a plan that does not choose among them by what it expects of them.
    serial = {"adaptive": "static", "draft_ahead": False, "wait_budget_us": 5_000_000}
    async with (
        drafter_process("standalone", model=pocket / "draft") as endpoint,
        verifier_over(pocket / "target", max_sessions=16, **serial) as verifier,
    ):
        steps = recorded(verifier)
        requests = [
            DecodeRequest(str(seed), prompt, Sampling(temperature, seed=seed), stopping, drafter=endpoint)
            for seed, prompt in enumerate(beginnings(pocket / "target", 12))
        ]
        await asyncio.gather(*(decode(verifier, request) for request in requests))
        records = steps[10:]
    taken = [session for record in records for session in record.sessions]
    predicted = np.exp(np.concatenate([session.draft.log_survivals[1:] for session in taken]))
    accepted = np.concatenate(
        [np.isin(range(1, len(session.draft.tokens)), session.accepted_path) for session in taken]
    )
    assert len(predicted) == len(accepted) > 1000
    # The expected calibration error: how far prediction and outcome are apart in each bin, weighted by its nodes.
    bins = np.digitize(predicted, (0.1, 0.3, 0.6))
    apart = [abs(predicted[bins == i].mean() - accepted[bins == i].mean()) * (bins == i).mean() for i in set(bins)]
    assert sum(apart) < 0.1, apart
    assert abs(predicted.mean() - accepted.mean()) < 0.1


def beginnings(target: Path, count: int) -> list[list[int]]:
    """The beginnings of `count` functions that no pocket model was trained on."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    pieces = (Path(torch.__file__).parent / "nn" / "functional.py").read_text().split("\ndef ")[1 : count + 1]
    return [tokenizer.encode("\ndef " + piece)[:24] for piece in pieces]
