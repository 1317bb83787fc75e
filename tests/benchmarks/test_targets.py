"""The benchmark of targets by the kind of their layers: what is kept of a text, and a small run of all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import latents, targets
from benchmarks.context import Context

KINDS = ("all tokens", "a window", "windows, 3 of 4", "windows, 3 of 4, all kept")


def test_of_a_window_no_more_is_kept_of_a_longer_text() -> None:
    """Of each layer, that is."""
    models = {kind: targets.load(kind) for kind in KINDS}
    numbers = 4 * 2 * 2 * 32  # of 4 bytes, keys and values of 2 heads, 32 wide
    kept = {
        kind: [targets.kept_bytes(lm, context) // numbers for context in (1024, 4096)] for kind, lm in models.items()
    }
    assert kept == {
        "all tokens": [4 * 1024, 4 * 4096],
        "a window": [4 * targets.WINDOW] * 2,
        "windows, 3 of 4": [3 * targets.WINDOW + 1024, 3 * targets.WINDOW + 4096],
        "windows, 3 of 4, all kept": [4 * 1024, 4 * 4096],
    }


def test_what_latent_attention_keeps_is_as_small_as_its_latents() -> None:
    row = latents.row_of("minicpm3")
    assert row["as_heads"] == 2 * 62 * 40 * (64 + 32 + 64)
    assert row["as_latents"] == 2 * 62 * (256 + 32)
    assert (row["latent"], row["widths"]) == ("256, 32", "96, 64")
    kept = [(lm := targets.load(kind)).kv.nbytes // lm.kv.num_slots for kind in targets.KINDS if "latent" in kind]
    assert kept == [4 * 4 * (64 + 16), 4 * 4 * 8 * (48 + 32)]


@pytest.mark.slow
def test_a_small_run_has_a_row_for_every_kind_context_and_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(targets, "CONTEXTS", (64, 128))  # the long ones take a minute or two
    targets.run(Context(Path(), quick=True, machine={}, console=Console(quiet=True)))
    rows = json.loads((tmp_path / "build/results/targets.json").read_text())["rows"]
    assert len(rows) == len(targets.KINDS) * len(targets.CONTEXTS) * len(targets.NODES)
    states = {row["kind"]: row["states"] for row in rows}
    assert states["all tokens"] == 0 < states["linear attention, 3 of 4"]
    assert {row["kv_token"] for row in rows if row["kind"] == "state spaces"} == {0}
    shapes = json.loads((tmp_path / "build/results/latents.json").read_text())["rows"]
    assert [row["kind"] for row in shapes] == list(latents.SHAPES)
