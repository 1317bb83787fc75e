"""The tables of docs/heads.md and docs/mtp.md say what tests hold, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scripts.print_heads import PAGES, PLACE, ROOT, text
from tests.model.heads.rows import TABLES

FOLDER = "tests/model/heads"
ROWS = [row for table in TABLES.values() for row in table.rows]


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """The tests of all modules that rows name."""
    modules = sorted({test.partition("::")[0] for row in ROWS for test in row.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(f"{FOLDER}/{module}" for module in modules)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {line.removeprefix(f"{FOLDER}/") for line in done.stdout.splitlines()}


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_a_page_are_what_the_rows_give(name: str) -> None:
    page = PAGES[name]
    assert page.read_text() == text(page), "run .venv/bin/python -m scripts.print_heads"
    assert {found for _, found, _ in PLACE.findall(page.read_text())} == {
        each for each, table in TABLES.items() if table.page == name
    }


def test_every_row_is_held_by_tests_that_are_there(collected: set[str]) -> None:
    assert [row.cells for row in ROWS if not row.tests] == []
    assert {test for row in ROWS for test in row.tests} - collected == set()


def test_all_that_another_library_wrote_holds_a_row() -> None:
    folders = {folder.name for folder in (ROOT / "tests/data/heads").iterdir() if folder.is_dir()}
    folders |= {file.stem for file in (ROOT / "tests/data/mtp").glob("*.safetensors")}
    named = {test.partition("[")[2].removesuffix("]") for row in ROWS for test in row.tests}
    assert folders - named == set()
