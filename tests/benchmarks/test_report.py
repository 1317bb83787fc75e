from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.machine import describe
from benchmarks.report import Report
from benchmarks.spread import percentile, spread


def _draw(figure: Figure) -> None:
    figure.subplots().plot([1], [2])


def test_a_report_writes_a_table_figures_and_a_plot_that_say_where_they_come_from(tmp_path: Path) -> None:
    machine = describe(["python -m benchmarks", "speedup"])
    row = {"way": "alone", "rate": 12.3456, "rate_spread": spread([12.0, 12.3456, 13.0])}
    report = Report("speedup", "Title", {"way": "way", "rate": "tokens/s"}, [row], machine, notes=["a note"])
    paths = report.write(tmp_path, _draw)
    assert [path.name for path in paths] == ["speedup.json", "speedup.md", "speedup.png"]
    assert all(path.stat().st_size for path in paths)
    kept = json.loads(paths[0].read_text())
    assert kept["machine"]["command"] == "python -m benchmarks speedup"
    assert {"cpu", "cores", "commit", "torch"} <= kept["machine"].keys()
    assert kept["rows"][0]["rate_spread"]["repeats"] == 3
    assert "| alone | 12.3 |" in paths[1].read_text()


def test_a_spread_is_median_and_quartiles() -> None:
    got = spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (got.median, got.low, got.high, got.repeats) == (3.0, 2.0, 4.0, 5)
    assert percentile([], 50) == 0.0
