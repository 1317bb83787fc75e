"""The parts of `.ci/containers` that need no engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.containers import base_image
from scripts.containers.proof import records_of
from scripts.containers.shell import Failed, run

ROOT = Path(__file__).resolve().parents[2]


def test_the_stand_in_gets_pips_configuration_without_indexes_and_constraints_on_this_machines_disk(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path_factory.mktemp("pip") / "pip.conf"
    file.write_text("[global]\nfind-links = /wheels\nindex-url = https://one/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///disk/simple https://two/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/more")
    monkeypatch.setenv("PIP_CONSTRAINT", "/disk/constraints.txt")
    found = base_image.pip_settings()
    assert found["index-url"] == "https://one/simple"
    assert found["extra-index-url"] == "https://two/simple"
    assert found["find-links"] == "/more", "the environment is stronger than the file"
    assert "constraint" not in found, "a file that the image has not"


def test_the_stand_in_is_for_the_image_that_the_dockerfile_names() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    version = dockerfile.partition("ARG PYTHON=")[2].split()[0]
    assert "FROM python:${PYTHON}-slim-bookworm AS base" in dockerfile
    assert f"python:{version}-slim-bookworm" == base_image.NAME


def test_a_log_is_json_objects_behind_the_line_that_says_where_the_service_listens() -> None:
    log = 'specsplit drafter listening on [::]:50052\n{"level": "info", "message": "serving"}\n'
    assert [record["message"] for record in records_of("drafter", log)] == ["serving"]


@pytest.mark.parametrize("line", ["Killed", '{"level": "error"}', '{"level": "info", "message": "Traceback (most"}'])
def test_a_line_that_is_no_json_object_or_tells_of_a_failure_is_found(line: str) -> None:
    with pytest.raises(Failed, match="verifier"):
        list(records_of("verifier", line))


def test_a_program_that_fails_shows_the_end_of_what_it_wrote() -> None:
    with pytest.raises(Failed, match=r"exit status 3\nlast words"):
        run(["sh", "-c", "echo last words; exit 3"])
    with pytest.raises(Failed, match="no-such-program: No such file"):
        run(["no-such-program"])


def test_where_it_cannot_run_it_says_why_and_fails_nothing() -> None:
    script = (ROOT / ".ci" / "containers").read_text()
    assert script.count("containers: skipped: ") == 2
