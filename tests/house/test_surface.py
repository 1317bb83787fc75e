"""What others rely on changes on purpose or not at all."""

from __future__ import annotations

from scripts.surface import SNAPSHOT, surface


def test_public_names_cli_options_and_top_level_names_are_those_of_the_snapshot() -> None:
    assert surface() == SNAPSHOT.read_text().splitlines(), "if this is meant: .venv/bin/python -m scripts.surface"
