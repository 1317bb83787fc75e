"""Where a build knows its commit from: a checkout, an image, or nowhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from specsplit import __version__
from specsplit import build as module


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that the code would seem to run from; `build` looks anew."""
    monkeypatch.setattr(module, "_ROOT", tmp_path)
    monkeypatch.delenv(module.COMMIT_VARIABLE, raising=False)
    monkeypatch.setattr(module, "build", module.build.__wrapped__)
    return tmp_path


def test_a_checkout_is_its_commit_and_says_if_it_has_changes(told: Path) -> None:
    git(told, "init", "-q")
    (told / "file").write_text("a")
    git(told, "add", "file")
    git(told, "commit", "-qm", "first")
    commit = git(told, "rev-parse", "HEAD")[:12]
    (told / "untracked").write_text("a")
    assert module.build() == f"{__version__}+{commit}"
    (told / "file").write_text("b")
    assert module.build() == f"{__version__}+{commit}-dirty"


def test_an_image_has_its_commit_from_its_variable_and_without_one_it_is_the_version_alone(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module.build() == __version__
    monkeypatch.setenv(module.COMMIT_VARIABLE, "0123456789ab")
    assert module.build() == f"{__version__}+0123456789ab"
    monkeypatch.setenv(module.COMMIT_VARIABLE, "")
    assert module.build() == __version__, "an image that was not told"
