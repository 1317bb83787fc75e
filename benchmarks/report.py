"""One benchmark's outcome: a table on the terminal; a JSON file, a Markdown table and a plot on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, object]


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Report:
    """Rows that all have the keys of `columns`, and what one must know to read them."""

    name: str
    """File name stem."""
    title: str
    columns: dict[str, str]
    """Key of a row's value -> heading, units in it."""
    rows: list[Row]
    machine: dict[str, object]
    settings: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Sentences: aims met or not, what stands in for what."""
    below: list[Report] = field(default_factory=list)
    """More tables, each with its title and notes."""

    def show(self, console: Console) -> None:
        """Print the table and the notes."""
        table = Table(title=self.title)
        for number, heading in enumerate(self.columns.values()):
            table.add_column(heading, justify="left" if number == 0 else "right")
        for row in self.rows:
            table.add_row(*(Text(_cell(row[key])) for key in self.columns))
        console.print(table)
        for note in self.notes:
            console.print(f"- {note}", highlight=False, markup=False)
        for other in self.below:
            other.show(console)

    def markdown(self) -> str:
        """The report as Markdown, with the machine and the command below."""
        lines = [f"# {self.title}", "", *self.table(), "", *(f"* {note}" for note in self.notes), ""]
        for other in self.below:
            lines += [f"## {other.title}", "", *other.table(), "", *(f"* {note}" for note in other.notes), ""]
        lines += [f"Settings: {', '.join(f'{k} {v}' for k, v in self.settings.items())}.", ""] if self.settings else []
        lines += [f"Measured with {', '.join(f'{k} {v}' for k, v in self.machine.items())}.", ""]
        return "\n".join(lines)

    def table(self) -> list[str]:
        """The rows as lines of Markdown."""
        lines = ["| " + " | ".join(self.columns.values()) + " |", "|---" * len(self.columns) + "|"]
        return lines + ["| " + " | ".join(_cell(row[key]) for key in self.columns) + " |" for row in self.rows]

    def write(self, folder: Path, draw: Callable[[Figure], None]) -> list[Path]:
        """Write `<name>.json`, `.md` and `.png` into `folder`; `draw` fills the plot."""
        import matplotlib  # noqa: PLC0415 (who writes tables alone does without it)
        from matplotlib.figure import Figure  # noqa: PLC0415

        matplotlib.use("Agg")
        paths = [*self.write_tables(folder), folder / f"{self.name}.png"]
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        draw(figure)
        figure.savefig(paths[-1], dpi=110)
        return paths

    def write_tables(self, folder: Path) -> list[Path]:
        """Write `<name>.json` and `.md` into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.name}.{ending}" for ending in ("json", "md")]
        paths[0].write_text(json.dumps(asdict(self), indent=2, default=_plain) + "\n", encoding="utf-8")
        paths[1].write_text(self.markdown(), encoding="utf-8")
        return paths
