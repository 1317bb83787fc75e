"""Settings that do not go together: the sentence names where each of them stands, and no option that nobody gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from specsplit.cli.serve import SETTINGS, load_settings
from specsplit.errors import InvalidRequest

CONTRADICTIONS: list[tuple[str, dict[str, str], str]] = [
    ("coordinator", {"heartbeat_ms": "3000"}, "lost_after_ms"),
    ("coordinator", {"heartbeat_ms": "3000", "lost_after_ms": "2500"}, ""),
    ("coordinator", {"default_max_tokens": "9", "max_max_tokens": "8"}, ""),
    ("coordinator", {"tls_key": "key.pem"}, "tls_cert"),
    ("coordinator", {"tls_cert": "cert.pem"}, ""),
    ("coordinator", {"roles_file": "roles.toml"}, "tls_client_ca"),
    ("verifier", {"model": "m", "tp_size": "2", "random_weights": "true"}, ""),
    ("verifier", {"model": "m", "tp_size": "2", "compile": "regional"}, ""),
    ("verifier", {"model": "m", "dp_size": "2", "rank_timeout_s": "90"}, "step_timeout_s"),
    ("verifier", {"model": "m", "adaptive": "goodput", "adaptive_config": "tiers.json"}, ""),
    ("verifier", {"model": "m", "max_nodes": "3", "num_draft_tokens": "64"}, ""),
    ("verifier", {"model": "m", "feature_retention": "64"}, ""),
    ("verifier", {"model": "m", "step_token_budget": "9000"}, "feature_retention"),
    ("drafter", {"kind": "ngram", "model": "draft"}, ""),
    ("drafter", {"kind": "ngram", "feature_format": "float16"}, ""),
    ("drafter", {"kind": "ngram", "feature_projection": "true"}, ""),
    ("drafter", {"kind": "ngram", "target": "target"}, ""),
]
"""A service, its settings, and the setting that is left as it is and does not go with them."""
QUIET = {"model", "tp_size", "dp_size"}
"""What may stand beside them without a word."""


def problem(service: str, config: Path | None = None, **given: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        load_settings(SETTINGS[service], config, **given)
    return str(caught.value)


def required(service: str, given: dict[str, str]) -> dict[str, str]:
    return {"model": "m"} if service == "coordinator" and "model" not in given else {}


@pytest.mark.parametrize(("service", "given", "left"), CONTRADICTIONS)
def test_what_stands_in_the_environment_is_blamed_on_its_variable(
    service: str, given: dict[str, str], left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"SPECSPLIT_{service.upper()}_{name.upper()}", value)
    said = problem(service, None, **required(service, given))
    assert "--" not in said
    told = [f"SPECSPLIT_{service.upper()}_{name.upper()}" for name in given if name not in QUIET]
    assert all(variable in said for variable in told), said
    assert said.startswith(f"{left}: " if left else "SPECSPLIT_")


@pytest.mark.parametrize(("service", "given", "left"), CONTRADICTIONS)
def test_what_stands_in_a_file_is_blamed_on_the_file(
    service: str, given: dict[str, str], left: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("".join(f"{name} = {value!r}\n" for name, value in given.items()))
    said = problem(service, file, **required(service, given))
    assert "--" not in said
    assert all(f"{name} in {file}" in said for name in given if name not in QUIET), said


def test_an_option_is_blamed_where_it_was_given_with_the_variable_that_it_stands_against(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPECSPLIT_COORDINATOR_HEARTBEAT_MS", "3000")
    assert problem("coordinator", model="m", lost_after_ms="1000") == (
        "--lost-after-ms: is 1000, expected more than heartbeat_ms = 3000 (told by SPECSPLIT_COORDINATOR_HEARTBEAT_MS)"
    )
    assert problem("coordinator").startswith("--model: is required")


@pytest.mark.parametrize("service", SETTINGS)
def test_a_number_of_thousands_of_digits_is_refused_in_one_short_sentence_wherever_it_stands(
    service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    digits, file = "9" * 5_000, tmp_path / "settings.toml"
    for name, field in SETTINGS[service].model_fields.items():
        if field.annotation in (Path, Path | None) or name in ("device", "metrics_clients", "trace_modules"):
            continue
        variable = f"SPECSPLIT_{service.upper()}_{name.upper()}"
        monkeypatch.setenv(variable, digits)
        sentences = [problem(service, model="m") if name != "model" else ""]
        monkeypatch.delenv(variable)
        for written in (f"{name} = {digits}", f'{name} = "{digits}"', f'{name} = "-{digits},1"'):
            file.write_text(written)
            sentences.append(problem(service, file, model="m"))
        sentences.append(problem(service, None, model="m", **{name: digits}))
        assert max(map(len, sentences)) < 600, (name, sentences)


@pytest.mark.parametrize("service", SETTINGS)
def test_no_text_in_the_settings_has_control_characters(service: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    for name, field in SETTINGS[service].model_fields.items():
        if field.annotation in (str, Path, Path | None):
            file.write_text(f'{name} = "a\\u0000b"\n')
            required = {} if name == "model" else {"model": "m"}
            assert problem(service, file, **required).startswith(f"{name} in {file}: is 'a\\x00b'"), name
