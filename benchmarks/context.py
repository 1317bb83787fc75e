"""What every benchmark is given: models, folder, size of the run, and where to show progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks.progress import Advance, progress
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path("docs/results")
QUICK_RESULTS = Path("build/results")


@dataclass(frozen=True)
class Context:
    """One run of `python -m benchmarks`."""

    models: Path
    """Folder with `target` and `draft`."""
    quick: bool
    """A small run: shows that it works, its figures are not for the docs and go to build/results."""
    machine: dict[str, object]
    """Where, when and with what command, taken before anything ran."""
    console: Console

    @property
    def target(self) -> Path:
        """The target's folder."""
        return self.models / "target"

    @property
    def draft(self) -> Path:
        """The standalone draft's folder."""
        return self.models / "draft"

    @property
    def folder(self) -> Path:
        """Where reports go."""
        return QUICK_RESULTS if self.quick else RESULTS

    def keep(self, report: Report) -> None:
        """Write what there is of a report that is not whole yet, without a word."""
        report.write_tables(self.folder)

    def progress(self, what: str, total: int) -> AbstractContextManager[Advance]:
        """Show how many of `total` pieces are done; call what it yields after each, with a word on what comes next."""
        return progress(self.console, what, total)

    def finish(
        self, name: str, title: str, columns: dict[str, str], rows: list[Row], settings: dict[str, object], notes: list[str],
        draw: Callable[[Figure], None],
    ) -> Report:  # fmt: skip
        """Print the report and write its files."""
        report = Report(name, title, columns, rows, self.machine, settings | {"quick": self.quick}, notes)
        self.write(report, draw)
        return report

    def write(self, report: Report, draw: Callable[[Figure], None] | None = None) -> None:
        """Print a report and write its files, a plot among them if it is drawn."""
        report.show(self.console)
        for path in report.write_tables(self.folder) if draw is None else report.write(self.folder, draw):
            self.console.print(f"wrote {path}", highlight=False)
