"""Writes the tables of docs/heads.md and docs/mtp.md from the rows that tests hold, or with --check says whether they are those."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from scripts.printed import ROOT, finish
from tests.model.heads.rows import TABLES, Table

PAGES = {name: ROOT / "docs" / f"{name}.md" for name in ("heads", "mtp")}
PLACE = re.compile(r"(<!-- Printed by `python -m scripts.print_heads`: (.+?) -->\n).*?(<!-- End -->)", re.DOTALL)


def lines(table: Table) -> Iterator[str]:
    """A table as it stands on its page."""
    yield _line((*table.columns, "held to"))
    yield "|" + "---|" * (len(table.columns) + 1)
    for row in table.rows:
        yield _line((*row.cells, ", ".join(dict.fromkeys(held.whose for held in row.held))))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def text(page: Path) -> str:
    """A page with its tables as the rows have them. Raises KeyError for a table that has no rows."""
    return PLACE.sub(lambda found: "\n".join((found[1], *lines(TABLES[found[2]]), "", found[3])), page.read_text())


if __name__ == "__main__":
    raise SystemExit(max(finish(page, text(page), "print_heads", __doc__) for page in PAGES.values()))
