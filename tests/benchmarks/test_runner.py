"""What all benchmarks share: rounds side by side, bars and lines, processes that say where they are, and sums of metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.context import Context
from benchmarks.plots import bars, lines, panels, sideways
from benchmarks.processes import process, said
from benchmarks.runner import parser_of, rounds
from benchmarks.scrape import place_of

ROWS = [
    {"temperature": t, "way": way, "rate": rate, "length": 2 * rate}
    for t, way, rate in ((0.0, "alone", 1.0), (0.0, "with, a_drafter", 3.0), (1.0, "alone", 2.0), (1.0, "with, a_drafter", 4.0))
]  # fmt: skip


@pytest.mark.parametrize(("back_and_forth", "order"), [(False, "ab ab ab"), (True, "ba ab ba")])
def test_cells_take_turns_in_every_round_and_the_first_warms_up(back_and_forth: bool, order: str) -> None:
    context = Context(Path(), quick=True, machine={}, console=Console(quiet=True))
    found = [*rounds(context, "toy", "ab", 2, back_and_forth=back_and_forth)]
    assert "".join(cell for cell, _ in found) == order.replace(" ", "")
    assert [repeat for _, repeat in found] == [0, 0, 1, 1, 2, 2]


def test_every_row_has_its_bars_in_the_panel_of_its_temperature() -> None:
    figure = Figure()
    bars(figure, ROWS, lambda row: str(row["way"]), {"rate": "tokens/s", "length": "length"}, "how much")
    cold, warm = figure.axes
    assert [bar.get_height() for bar in cold.patches] == [1.0, 3.0, 2.0, 6.0]  # pyright: ignore[reportAttributeAccessIssue]
    assert [bar.get_height() for bar in warm.patches] == [2.0, 4.0, 4.0, 8.0]  # pyright: ignore[reportAttributeAccessIssue]
    assert [label.get_text() for label in warm.get_xticklabels()] == ["alone", "with,\na\ndrafter"]
    assert (cold.get_title(), cold.get_ylabel()) == ("temperature 0", "how much")


def test_a_row_may_have_a_bar_in_each_of_several_panels_or_one_of_its_own_line() -> None:
    figure, other = Figure(), Figure()
    panels(figure, ROWS[:2], "way", {"rate": "tokens/s", "length": "length"})
    assert [len(panel.patches) for panel in figure.axes] == [2, 2]
    sideways(other, ROWS, lambda row: f"{row['way']}, T={row['temperature']:g}", "rate", "tokens/s")
    (panel,) = other.axes
    assert [bar.get_width() for bar in panel.patches] == [1.0, 3.0, 2.0, 4.0]  # pyright: ignore[reportAttributeAccessIssue]


def test_rows_of_one_name_are_one_line() -> None:
    panel = Figure().subplots()
    lines(panel, ROWS, lambda row: str(row["way"]), "temperature", "rate")
    assert [(line.get_label(), np.asarray(line.get_ydata()).tolist()) for line in panel.get_lines()] == [
        ("alone", [1.0, 2.0]),
        ("with, a_drafter", [3.0, 4.0]),
    ]


def test_a_process_that_ends_without_a_word_is_told_of() -> None:
    with process("this") as started:
        assert said(started) == "The Zen of Python, by Tim Peters"
    with process("platform", "--nonsense") as started:
        said(started)
        with pytest.raises(RuntimeError, match="a process of the benchmark ended"):
            said(started)


def test_options_that_benchmarks_share_mean_the_same_for_all() -> None:
    options = parser_of("toy", "A toy.", "--quick", "--models").parse_args(["--quick"])
    assert options.quick and options.models == Path("models/pocket") and not hasattr(options, "docs")


def test_where_metrics_are_is_read_off_a_line_that_says_so() -> None:
    assert place_of("metrics on http://127.0.0.1:9/metrics, traces off") == "http://127.0.0.1:9/metrics"
    assert place_of("listening on http://127.0.0.1:9/") is None
