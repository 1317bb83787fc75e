"""`make gpu` and `make gpu-wheels`: what they need of a machine, and what they put where."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
import torch

from scripts import gpu_carried, gpu_site, gpu_toolkit, gpu_wheels
from scripts.gpu_toolkit import linked

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


def toolkit(folder: Path, libraries: str, *, stub: bool) -> Path:
    """A toolkit whose nvcc says where it lies, as the real one does, and a script in a bin of its own that starts it."""
    for below in ("bin", libraries, f"{libraries}/stubs"):
        (folder / "cuda" / below).mkdir(parents=True)
    (folder / "cuda" / libraries / "libcudart.so").touch()
    if stub:
        (folder / "cuda" / libraries / "stubs" / "libcuda.so").touch()
    nvcc = folder / "cuda" / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho '#$ _SPACE_= ' >&2\necho '#$ _HERE_={nvcc.parent}' >&2\n")
    wrapper = folder / "bin" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {nvcc} "$@"\n')
    for each in (nvcc, wrapper):
        each.chmod(0o755)
    return folder / "cuda"


@pytest.mark.parametrize("libraries", ["lib64", "lib", "targets/x86_64-linux/lib"])
def test_the_toolkit_is_where_nvcc_says_though_a_script_starts_it(tmp_path: Path, libraries: str) -> None:
    home = toolkit(tmp_path, libraries, stub=True)
    found = linked(
        {"PATH": f"{tmp_path / 'bin'}:{os.defpath}", "FLASHINFER_EXTRA_LDFLAGS": "-lmore"}, tmp_path / "driver"
    )
    assert found["CUDA_HOME"] == str(home)
    assert found["FLASHINFER_EXTRA_LDFLAGS"] == f"-L{home / libraries} -L{home / libraries / 'stubs'} -lmore"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_where_the_toolkit_has_no_stub_there_is_something_to_link_with(tmp_path: Path) -> None:
    home, driver = toolkit(tmp_path, "lib", stub=False), tmp_path / "driver"
    found = linked({"CUDA_HOME": str(home), "PATH": os.defpath}, driver)
    assert f"-L{driver}" in found["FLASHINFER_EXTRA_LDFLAGS"]
    program = tmp_path / "linked.so"
    subprocess.run(
        ["gcc", "-shared", "-Wl,--no-as-needed", "-o", program, f"-L{driver}", "-lcuda", "-x", "c", os.devnull],
        check=True,
    )
    assert b"libcuda.so.1" in program.read_bytes()


def test_without_nvcc_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_toolkit, "USUAL", tmp_path)
    assert linked({"PATH": str(tmp_path)}, tmp_path / "driver") == {}


def test_kernels_that_were_compiled_before_lie_where_flashinfer_looks(tmp_path: Path) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    (wheels / "kernels" / "decode").mkdir(parents=True)
    (wheels / "kernels" / "decode" / "decode.so").write_text("machine code")
    wheel(wheels, "specsplit_test_wheel", "1.0")
    assert gpu_site.fill(site, wheels, PROJECT) is None
    assert (site / "flashinfer/data/aot/decode/decode.so").read_text() == "machine code"


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


def test_all_that_is_carried_is_summed_up_and_too_much_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernels").mkdir()
    for name, mib in (("one.whl", 30), ("kernels/one.so", 33)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(mib << 20)  # holes, which take no room
    gpu_carried.tell_sum("gpu-wheels", tmp_path)
    assert capsys.readouterr().out == f"gpu-wheels: 2 files are carried, 63.0 MiB of 64 at most, in {tmp_path}\n"
    with (tmp_path / "two.whl").open("wb") as file:
        file.truncate(2 << 20)
    with pytest.raises(
        SystemExit, match=r"more than 64 MiB; leave something out: the largest is kernels/one.so, 33.0 MiB"
    ):
        gpu_carried.tell_sum("gpu-kernels", tmp_path)
