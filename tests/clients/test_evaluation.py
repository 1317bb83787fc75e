"""lm-eval has the texts of a task generated through the gateway; what it would rate texts by is not passed on."""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from specsplit.cli.gateway import Gateway
from specsplit.client import Client
from tests.clients.programs import TOKENIZER, run

PROMPTS = ("def add(a, b):\n", "class Stack:\n    def push(self, item):\n", "import os\n", "def main(")
MAX_TOKENS = 24


def task(folder: Path, answers: dict[str, str]) -> str:
    """A task of our own in `folder`, whose right answers these are by prompt: its name."""
    lines = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in answers.items()]
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
    described = {
        "task": "greedy",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "questions.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "prompt",
        "doc_to_target": "answer",
        "generation_kwargs": {"until": ["\n\n\n\n"], "max_gen_toks": MAX_TOKENS, "temperature": 0},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    (folder / "greedy.yaml").write_text(yaml.safe_dump(described))
    return "greedy"


@pytest.mark.timeout(300)
def test_lm_eval_scores_1_where_the_right_answers_are_what_our_own_client_gets(
    gateway: Gateway, own: Client, tmp_path: Path
) -> None:
    answers = {prompt: own.generate(prompt, max_tokens=MAX_TOKENS, stop=["\n\n\n\n"]).text for prompt in PROMPTS}
    run(
        tmp_path,
        "lm-eval",
        "run",
        "--model=local-completions",
        f"--model_args=model=target,base_url={gateway.url}/completions,tokenizer={TOKENIZER},tokenized_requests=False,"
        "num_concurrent=2,max_retries=1",
        f"--include_path={tmp_path}",
        f"--tasks={task(tmp_path, answers)}",
        "--output_path=report",
        "--log_samples",
    )
    (results,) = tmp_path.glob("report/*/results_*.json")
    assert json.loads(results.read_text())["results"]["greedy"]["exact_match,none"] == 1.0
    (samples,) = tmp_path.glob("report/*/samples_*.jsonl")
    written = [json.loads(line) for line in samples.read_text().splitlines()]
    assert {each["doc"]["prompt"]: each["resps"][0][0] for each in written} == answers


def test_the_gateway_gives_no_log_probabilities_of_a_prompt_so_that_texts_cannot_be_rated(gateway: Gateway) -> None:
    import openai

    with openai.OpenAI(base_url=gateway.url, api_key="nobody asks", max_retries=0) as client:
        answer = client.completions.create(model="target", prompt=PROMPTS[0], max_tokens=1, echo=True, logprobs=1)
    (choice,) = answer.choices
    assert choice.text.startswith(PROMPTS[0]) and choice.logprobs is None
