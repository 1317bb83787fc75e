"""Pointers in the docs lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "docs",
    "deploy",
    "specsplit",
    "drafter",
    "verifier",
    "coordinator",
    "protos",
    "benchmarks",
    "scripts",
    "models",
    "tests",
)
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PATH_IN_TEXT = re.compile(r"`([\w.-]+(?:/[\w.-]+)+/?)`")


def links_of(page: Path) -> Iterator[str]:
    for target in LINK.findall(page.read_text()):
        if not re.match(r"[a-z]+:", target):
            yield target


def paths_of(page: Path) -> Iterator[str]:
    """Backticked paths that begin in a folder of the project."""
    for target in PATH_IN_TEXT.findall(page.read_text()):
        if target.split("/")[0] in FOLDERS:
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_path_of_a_page_exists(page: Path) -> None:
    dead = [target for target in links_of(page) if not (page.parent / target).exists()]
    if page.name != "log.md":  # a log tells of things that are gone
        dead += [target for target in paths_of(page) if not (ROOT / target).exists()]
    assert dead == []


def test_the_pages_that_the_project_promises_are_there() -> None:
    promised = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"]
    promised += [f"docs/{name}.md" for name in ("design", "lifecycle", "tree", "protocol", "log")]
    assert [name for name in promised if not (ROOT / name).is_file() or not (ROOT / name).stat().st_size] == []


@pytest.mark.parametrize("service", ["verifier", "drafter", "coordinator"])
def test_the_readme_of_a_service_says_what_every_module_is(service: str) -> None:
    package = ROOT / service / f"specsplit_{service}"
    modules = {str(file.relative_to(package)) for file in package.rglob("*.py") if file.name != "__init__.py"}
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / service / "README.md").read_text()))
    assert modules - named == set()
    assert {name for name in named - modules if not (ROOT / name).exists()} == set(), "gone"
