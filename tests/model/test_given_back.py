"""What a process gives back when a model is loaded: pages of weight files, and nothing that was written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specsplit.model.tensors.given_back import give_back

COUNT = 1 << 20

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="memory is looked up as Linux tells it")


def resident(path: Path) -> int:
    """Bytes of a file that are in this process's memory."""
    lines, found, inside = Path("/proc/self/smaps").read_text().splitlines(), 0, False
    for line in lines:
        if "-" in line.split(" ")[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


def mapped(path: Path) -> torch.Tensor:
    torch.arange(COUNT, dtype=torch.float32).numpy().tofile(path)
    return torch.from_file(str(path), shared=False, size=COUNT, dtype=torch.float32)


def test_pages_of_files_in_the_folder_leave_memory_and_are_there_when_they_are_read(tmp_path: Path) -> None:
    model, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    for folder in (model, elsewhere):
        folder.mkdir()
    weights, other = mapped(model / "weights"), mapped(elsewhere / "weights")
    total = weights.sum() + other.sum()
    assert resident(model / "weights") == resident(elsewhere / "weights") == 4 * COUNT
    give_back(model)
    assert resident(model / "weights") == 0 < resident(elsewhere / "weights")
    assert weights.sum() + other.sum() == total


def test_weights_that_were_written_to_are_kept(tmp_path: Path) -> None:
    weights = mapped(tmp_path / "weights")
    weights[7] = -1.0
    give_back(tmp_path)
    assert weights[7] == -1.0 and weights[8] == 8.0


def test_a_folder_that_is_a_link_is_the_one_that_it_leads_to(tmp_path: Path) -> None:
    """As in the cache of a hub, where files are links too."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "model").mkdir()
    weights = mapped(tmp_path / "blobs" / "1")
    (tmp_path / "model" / "weights").symlink_to(tmp_path / "blobs" / "1")
    assert weights.sum() > 0 and resident(tmp_path / "blobs" / "1")
    give_back(tmp_path / "model")
    assert resident(tmp_path / "blobs" / "1") == 0
