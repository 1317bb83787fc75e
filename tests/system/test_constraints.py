"""Output that is held to a constraint, over real processes: with every kind of drafter and with none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.client import Client, Result
from specsplit.errors import InvalidRequest
from specsplit.values import FinishReason
from tests.support.command import run
from tests.support.drafting import POCKET, POCKET_KINDS
from tests.support.grammars import SCHEMA, STRUCTURAL_TAG
from tests.system.conftest import SERIAL

PROMPT = "def parts():\n    return "
WAYS: dict[str, dict[str, Any]] = {
    "schema": {"json_schema": SCHEMA},
    "seeded schema": {"json_schema": SCHEMA, "temperature": 0.9, "seed": 3},
    "object": {"json_object": True, "temperature": 0.7, "top_p": 0.9, "seed": 4},
    "regex": {"regex": r"\[[a-z]+(, [a-z]+){2}\]"},
    "grammar": {"grammar": 'start: sum\nsum: NUMBER | sum " + " NUMBER\nNUMBER: /[0-9]{1,3}/'},
    "choice": {"choice": ["None", "True", "[]"], "temperature": 1.0, "seed": 5},
    "tag": {"structural_tag": STRUCTURAL_TAG},
}
KINDS = ["none", *(kind.value for kind in POCKET_KINDS)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    drafters = [kind.value for kind in POCKET_KINDS]
    with LocalCluster(POCKET, drafts_beside(POCKET), drafters=drafters) as started:
        yield started


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with cluster.client() as client:
        yield client


def written(client: Client, kind: str) -> dict[str, Result]:
    with ThreadPoolExecutor(len(WAYS)) as pool:
        calls = {
            way: pool.submit(client.generate, PROMPT, max_tokens=60, drafter=kind, plan=SERIAL, timeout_s=120, **asked)
            for way, asked in WAYS.items()
        }
        return {way: call.result(120) for way, call in calls.items()}


def test_text_is_what_the_constraint_says_and_the_same_with_every_drafter(client: Client) -> None:
    alone = written(client, "none")
    for kind in KINDS[1:]:
        found = written(client, kind)
        assert {way: each.tokens for way, each in found.items()} == {way: each.tokens for way, each in alone.items()}, (
            kind
        )
    for way in ("schema", "seeded schema"):
        assert alone[way].reason is FinishReason.STOP and alone[way].done.matched_stop is None
        assert [*json.loads(alone[way].text)] == SCHEMA["required"]
    assert alone["choice"].text in WAYS["choice"]["choice"]
    assert alone["object"].text.startswith("{")


def test_every_choice_of_a_request_is_held_to_it_and_an_answer_can_be_resumed(client: Client) -> None:
    whole = client.generate(PROMPT, max_tokens=60, temperature=0.9, seed=8, n=3, json_schema=SCHEMA)
    assert all([*json.loads(choice.text)] == SCHEMA["required"] for choice in whole.choices)
    for begun in (1, 7, len(whole.tokens) - 1, len(whole.tokens)):
        asked: dict[str, Any] = {"max_tokens": 60, "temperature": 0.9, "seed": 8, "json_schema": SCHEMA}
        rest = client.generate(PROMPT, resume_from=whole.tokens[:begun], **asked)
        assert (*whole.tokens[:begun], *rest.tokens) == whole.tokens and rest.reason is FinishReason.STOP


def test_what_cannot_be_compiled_is_the_callers_error_with_its_place(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="json_schema: cannot be compiled: at #/properties/a: Invalid type: text"):
        client.generate(PROMPT, json_schema={"properties": {"a": {"type": "text"}}})
    with pytest.raises(InvalidRequest, match="json_object: goes not with regex"):
        client.generate(PROMPT, regex="a", json_object=True)


def test_the_command_line_reads_a_schema_from_a_file(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    at = ["generate", "--address", cluster.address, "--prompt", PROMPT, "--json", "--max-tokens", "60"]
    assert run(*at, "--json-schema", str(file)) == 0
    assert [*json.loads(json.loads(capsys.readouterr().out)["text"])] == SCHEMA["required"]
    assert run(*at, "--choice", "None", "--choice", "True") == 0
    assert json.loads(capsys.readouterr().out)["text"] in ("None", "True")
    assert run(*at, "--json-schema", str(tmp_path / "none.json")) != 0
    assert "--json-schema: cannot read" in capsys.readouterr().err
