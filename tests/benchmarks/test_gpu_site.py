"""`make gpu` and `make gpu-wheels`: what they need of a machine, and what they put where."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
import torch

from scripts import gpu_site, gpu_wheels

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def wheel(folder: Path, name: str, version: str) -> Path:
    """Make a wheel of one empty module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: nowhere-to-be-found\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for where, text in files.items():
            archive.writestr(where, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{where},,\n" for where in (*files, f"{info}/RECORD")))
    return path


def test_wheels_and_entry_points_stand_in_a_folder_of_their_own_and_nothing_is_fetched(tmp_path: Path) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    wheel(wheels, "specsplit_test_wheel", "1.0")
    assert gpu_site.fill(site, wheels, PROJECT) is None
    assert (site / "specsplit_test_wheel.py").is_file()
    (ours,) = (each for each in distributions(path=[str(site)]) if each.name == "specsplit")
    found = {entry.name: entry.value for entry in ours.entry_points if entry.group == "specsplit.services"}
    assert found == PROJECT["entry-points"]["specsplit.services"]


def test_a_folder_without_wheels_is_refused_with_what_fills_one(tmp_path: Path) -> None:
    assert "make gpu-wheels" in str(gpu_site.fill(tmp_path / "site", tmp_path, PROJECT))


def test_what_neither_the_folder_nor_this_python_has_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert gpu_site.missing(tmp_path, PROJECT) is None
    more = {**PROJECT, "dependencies": [*PROJECT["dependencies"], "numpy>=999", "nowhere-to-be-found>=1"]}
    why = str(gpu_site.missing(tmp_path, more))
    assert "lacks numpy>=999, nowhere-to-be-found>=1;" in why and "make gpu WHEELS=path" in why


def test_processes_find_the_folder_first_then_the_checkout() -> None:
    found = gpu_site.environment({"PYTHONPATH": "/theirs", "FLASHINFER_WORKSPACE_BASE": "/kernels"})
    paths = found["PYTHONPATH"].split(os.pathsep)
    assert paths[:2] == [str(gpu_site.SITE), str(ROOT)] and paths[-1] == "/theirs"
    assert found["FLASHINFER_WORKSPACE_BASE"] == "/kernels"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_make_gpu_without_cuda_ends_at_once_and_touches_nothing() -> None:
    done = subprocess.run(
        ["make", "--silent", "gpu", f"PYTHON={sys.executable}", "WHEELS=/nowhere"],
        cwd=ROOT, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 2
    assert f"make gpu: no CUDA device: torch {torch.__version__}" in done.stderr


def test_the_wheels_are_what_a_machine_with_torch_may_lack_and_none_of_the_gigabytes() -> None:
    names = gpu_wheels.wanted(["grpcio-status", "tokenizers", "pydantic-settings"])
    assert {"grpcio", "protobuf", "pydantic-core", "flashinfer-python", "apache-tvm-ffi", "pytest-asyncio"} <= {*names}
    assert not {*gpu_wheels.STANDS_THERE, "huggingface-hub", "requests", "nvidia-cutlass-dsl"} & {*names}
