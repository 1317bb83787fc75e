"""The generated code is what the protos give."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts import generate_protos


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generate_protos.set_up()
    folder = tmp_path_factory.mktemp("protos")
    generate_protos.generate(folder)
    return folder / "specsplit" / "v1"


@pytest.mark.timeout(300)
def test_code_that_is_stale_missing_or_left_over_is_named(fresh: Path, tmp_path: Path) -> None:
    stale = tmp_path / "v1"
    shutil.copytree(fresh, stale)
    (stale / "common_pb2.py").write_text("# an older one\n")
    (stale / "drafter_pb2.pyi").unlink()
    (stale / "gone_pb2.py").touch()
    assert generate_protos.differences(fresh, stale) == ["common_pb2.py", "drafter_pb2.pyi", "gone_pb2.py"]
