"""The plots of the benchmarks: bars and lines over the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.report import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

Word = Callable[[Row], str]
"""What a row, or its line, is called."""


def bars(figure: Figure, rows: Sequence[Row], name: Word, series: Mapping[str, str], ylabel: str) -> None:
    """A panel for every temperature, and in it for every row a bar for each key of `series`, which has the bars' labels."""
    temperatures = [*dict.fromkeys(row["temperature"] for row in rows)]
    axes = figure.subplots(1, len(temperatures), sharey=True, squeeze=False)[0]
    width = 0.8 / len(series)
    for panel, temperature in zip(axes, temperatures, strict=True):
        here = [row for row in rows if row["temperature"] == temperature]
        for number, (key, label) in enumerate(series.items()):
            places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(here))]
            panel.bar(places, [row[key] for row in here], width=width, label=label)
        panel.set_xticks(range(len(here)), [broken(name(row)) for row in here], fontsize=6 if len(here) > 4 else 8)
        panel.set_title(f"temperature {temperature:g}")
    axes[0].set_ylabel(ylabel)
    if len(series) > 1:
        axes[0].legend(fontsize=7)


def panels(figure: Figure, rows: Sequence[Row], name: str, keys: Mapping[str, str], xlabel: str = "") -> None:
    """A panel for each key, which has its label, and in it a bar for every row, called by what the row has under `name`."""
    for panel, (key, label) in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys.items(), strict=True):
        panel.bar([broken(str(row[name])) for row in rows], [row[key] for row in rows])
        panel.set_xlabel(xlabel)
        panel.set_ylabel(label)
        panel.tick_params(axis="x", labelsize=6)


def sideways(figure: Figure | SubFigure, rows: Sequence[Row], name: Word, key: str, xlabel: str) -> None:
    """A bar for every row, the first on top."""
    panel = figure.subplots()
    panel.barh(range(len(rows)), [float(str(row[key])) for row in rows])
    panel.set_yticks(range(len(rows)), [name(row) for row in rows], fontsize=5 if len(rows) > 20 else 8)
    panel.invert_yaxis()
    panel.set_xlabel(xlabel)


def lines(panel: Any, rows: Sequence[Row], name: Word, x: str, y: str, **style: Any) -> None:
    """A line for all rows of one name; `x` and `y` are keys of rows."""
    for label in dict.fromkeys(map(name, rows)):
        here = [row for row in rows if name(row) == label]
        panel.plot([row[x] for row in here], [row[y] for row in here], marker="o", label=label, **style)


def broken(name: str) -> str:
    """A name in as many lines as it has parts."""
    return name.replace(", ", ",\n").replace("_", "\n")
