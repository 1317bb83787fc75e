"""What commands print goes through `specsplit.cli.screen` or `say`, which take markup and control characters for what they are: text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWN = ("specsplit/cli/screen.py", "specsplit/cli/say.py")
"""The places for it."""
RAW = ("Console", "Text", "typer.echo", "typer.secho", "print")
"""What reads markup, or writes what it is given as it is."""


def called(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).removesuffix(".assemble") in RAW:
            yield ast.unparse(node.func)


def test_no_command_prints_past_the_screen() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "specsplit").rglob("*.py"))
        if str(path.relative_to(ROOT)) not in OWN
        for name in called(ast.parse(path.read_text()))
    ]
    assert found == [], "make a Screen, a text() or a line of say() instead: names of others are no markup"


def test_no_benchmark_makes_a_console_of_its_own() -> None:
    files = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    found = [str(path.relative_to(ROOT)) for path in files if "Console" in set(called(ast.parse(path.read_text())))]
    assert found == []
