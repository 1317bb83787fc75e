"""How far a benchmark is, where nobody looks at a terminal."""

import io

from rich.console import Console

from benchmarks.progress import progress


def test_a_run_whose_output_is_a_file_tells_every_ten_seconds_and_at_its_end_how_far_it_is() -> None:
    out = io.StringIO()
    now = 100.0
    with progress(Console(file=out, width=80), "speedup", 5, clock=lambda: now) as advance:
        for word in ("a", "b", "c", "d", "e"):
            now += 4.0
            advance(f"way {word}")
    assert out.getvalue().splitlines() == ["speedup way c: 3/5, 12 s", "speedup way e: 5/5, 20 s"]


def test_a_terminal_gets_a_bar() -> None:
    out = io.StringIO()
    with progress(Console(file=out, width=80, force_terminal=True), "trees", 1) as advance:
        advance("8192 nodes")
    assert "trees 8192 nodes" in out.getvalue() and "1/1" in out.getvalue()
