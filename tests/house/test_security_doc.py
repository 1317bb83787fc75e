"""docs/security.md names the test that holds each threat off, and that test is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROWS = [
    line
    for line in PAGE.partition("## Threats")[2].splitlines()
    if line.startswith("| ") and not line.startswith("| threat ")
]


def defined_in(file: Path) -> set[str]:
    """The names of its test functions."""
    tree = ast.parse(file.read_text())
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_every_threat_names_tests_that_are_there(row: str) -> None:
    named = NAMED.findall(row)
    assert named, "a threat that no test holds off belongs into the text, as one that is not defended against"
    missing = [f"{file}::{test}" for file, test in named if test not in defined_in(ROOT / file)]
    assert missing == []


def test_the_table_is_found() -> None:
    assert len(ROWS) > 10
    assert len(NAMED.findall(PAGE)) == sum(len(NAMED.findall(row)) for row in ROWS), (
        "a test is named outside of the table"
    )
