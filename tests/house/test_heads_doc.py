"""The tables of docs/heads.md say what tests hold, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scripts.print_heads import PAGE, ROOT, TABLE, page
from tests.model.heads.rows import TABLES

FOLDER = "tests/model/heads"
ROWS = [row for rows in TABLES.values() for row in rows]


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """The tests of all modules that rows name."""
    modules = sorted({test.partition("::")[0] for row in ROWS for test in row.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(f"{FOLDER}/{module}" for module in modules)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {line.removeprefix(f"{FOLDER}/") for line in done.stdout.splitlines()}


def test_the_tables_of_the_page_are_what_the_rows_give() -> None:
    assert PAGE.read_text() == page(), "run .venv/bin/python -m scripts.print_heads"
    assert [name for _, name, _ in TABLE.findall(PAGE.read_text())] == list(TABLES)


def test_every_row_is_held_by_tests_that_are_there(collected: set[str]) -> None:
    assert [row.said for row in ROWS if not row.tests] == []
    assert {test for row in ROWS for test in row.tests} - collected == set()


def test_every_folder_that_another_library_wrote_holds_a_row() -> None:
    folders = {folder.name for folder in (ROOT / "tests/data/heads").iterdir() if folder.is_dir()}
    named = {test.partition("[")[2].removesuffix("]") for row in ROWS for test in row.tests}
    assert folders - named == set()
