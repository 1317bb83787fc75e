"""Writes the tables of docs/heads.md from the rows that tests hold, or with --check says whether they are what the rows give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from scripts.printed import ROOT, finish
from tests.model.heads.rows import TABLES, Row

PAGE = ROOT / "docs" / "heads.md"
TABLE = re.compile(r"(<!-- Printed by `python -m scripts.print_heads`: (.+?) -->\n).*?(<!-- End -->)", re.DOTALL)


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The lines of one table."""
    yield "| config.json or tensors | what is computed | held to |"
    yield "|---|---|---|"
    for row in rows:
        whose = dict.fromkeys(held.whose for held in row.held)
        yield f"| {row.said} | {row.computed} | {', '.join(whose)} |"


def page() -> str:
    """docs/heads.md with its tables as the rows have them. Raises KeyError for a table that has no rows."""
    return TABLE.sub(lambda found: "\n".join((found[1], *table(TABLES[found[2]]), "", found[3])), PAGE.read_text())


if __name__ == "__main__":
    raise SystemExit(finish(PAGE, page(), "print_heads", __doc__))
