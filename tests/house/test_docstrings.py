"""A docstring, or one of an attribute, stands alone: a reader need not look at the line above or at the parent to understand it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.house.test_size import PACKAGES, ROOT

LEANS = re.compile(
    r"(As|The same|Those|Both)\b|.*\band so (is|are|do|does|has|have|can|will)( \w+){0,4}\.?$", re.DOTALL
)


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that are statements: docstrings, and those below attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def leaning(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each that leans on what stands elsewhere."""
    for each in docstrings(ast.parse(source)):
        if LEANS.match(text := str(each.value).strip()):
            yield each.lineno, text.partition("\n")[0]


def test_no_docstring_leans_on_what_stands_elsewhere() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if ROOT / "specsplit" / "v1" not in path.parents
        for line, text in leaning(path.read_text())
    ]
    assert found == [], "say what it is; an override that does as its parent needs no docstring"


@pytest.mark.parametrize(
    "text",
    [
        "As CausalLM.",
        "The same, padded.",
        "Those held now.",
        "Both: since the start.",
        "Its rows end there, and so are the next.",
    ],
)
def test_one_that_leans_is_found(text: str) -> None:
    assert list(leaning(f'rows = 0\n"""{text}"""')) == [(2, text)]
