"""`make gpu`: the benchmark of the GPU path with whatever python3, torch and transformers stand on a machine, and no network.

Nothing is installed into that Python. Packages that it lacks come out of a folder of wheels (`make gpu-wheels` fills one) into
build/gpu/site, which its processes find first. A virtual environment on top would not do: one that is made from another virtual
environment does not see its packages. This module imports the standard library alone, until it knows that there is more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scripts.gpu_toolkit import linked

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "gpu" / "site"
LIMIT_S = 520.0
"""For packages and parts together; imports and the last part's end are not counted, and nine minutes are the bound."""
KERNELS = Path("flashinfer") / "data" / "aot"
"""Where FlashInfer looks for kernels that need not be compiled: `make gpu-kernels` makes some."""
PATHS = (SITE, ROOT, ROOT / "drafter", ROOT / "verifier", ROOT / "coordinator")


def main(words: list[str]) -> None:
    """Set up build/gpu/site, and become the benchmark. The status is 2 if something is missing."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--wheels", type=Path, help="folder of wheels with the packages that are missing here")
    parser.add_argument(
        "--dry", action="store_true", help="every part on tiny shapes on a CPU: no GPU is needed, and nothing measured"
    )
    options, rest = parser.parse_known_args(words)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    why = (
        no_python()
        or (None if options.dry else no_gpu())
        or fill(SITE, options.wheels, project)
        or missing(SITE, project)
    )
    if why is not None:
        print(f"make gpu: {why}", file=sys.stderr)
        sys.exit(2)
    left_s = LIMIT_S - (time.monotonic() - began)
    dry = ["--dry"] if options.dry else []
    command = [sys.executable, "-m", "benchmarks", "gpu", "--seconds", f"{left_s:.0f}", *dry, *rest]
    os.chdir(ROOT)
    os.execve(sys.executable, command, environment(os.environ))


def no_python() -> str | None:
    """Say what is missing of Python, torch and transformers; None if nothing is."""
    python = _python()
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        return f"{python} is no Python 3.11 or 3.12; say make gpu PYTHON=path"
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            return f"{python} has no {package}, which is taken as it stands there; say make gpu PYTHON=path"
    return None


def no_gpu() -> str | None:
    """Say that there is no GPU; None if there is one."""
    import torch  # noqa: PLC0415 (it is not known to be there before)

    if not torch.cuda.is_available():
        return (
            f"no CUDA device: torch {torch.__version__} of {_python()} sees none, and this measures nothing else; make gpu DRY=1 tries all "
            "parts on a CPU"
        )
    return None


def _python() -> str:
    return f"{sys.executable} (Python {sys.version.split()[0]})"


def fill(site: Path, wheels: Path | None, project: Mapping[str, Any]) -> str | None:
    """Put wheels and the services' entry points into `site`; what went wrong, or None."""
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    write_entry_points(site, project)
    if wheels is None:
        return None
    files = sorted(map(str, wheels.glob("*.whl")))
    if not files:
        return f"there are no wheels in {wheels}; make gpu-wheels fills build/wheels where there is a package index"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    install += ["--root-user-action", "ignore"]
    done = subprocess.run([*install, "--no-deps", "--no-compile", "--target", str(site), *files], check=False)
    if done.returncode:
        return f"pip could not install the wheels of {wheels}; what it said is above"
    if (wheels / "kernels").is_dir():
        shutil.copytree(wheels / "kernels", site / KERNELS, dirs_exist_ok=True)
    return None


def write_entry_points(site: Path, project: Mapping[str, Any]) -> None:
    """Make the checkout look installed: services are found by their entry points."""
    folder = site / f"{project['name']}-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n", encoding="utf-8")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {where}" for name, where in entries.items()))
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def missing(site: Path, project: Mapping[str, Any]) -> str | None:
    """Say which requirements neither `site` nor this Python meets; None if they are all there."""
    from packaging.requirements import Requirement  # noqa: PLC0415 (transformers requires it)

    sys.path.insert(0, str(site))
    wanted = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["engine"]])
    lacking = [str(each) for each in wanted if not each.specifier.contains(_version(each.name), prereleases=True)]
    if not lacking:
        return None
    return (
        f"{sys.executable} lacks {', '.join(lacking)}; make gpu-wheels, where there is a package index, puts what is missing into "
        "build/wheels; then say make gpu WHEELS=path"
    )


def _version(package: str) -> str:
    from packaging.version import Version  # noqa: PLC0415 (as above)

    try:  # NVIDIA numbers builds of torch as what precedes a release, 2.11.0a0+...
        return Version(version(package)).base_version
    except PackageNotFoundError:
        return "0"


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """What the benchmark and its processes find; kernels that FlashInfer compiles stay in this checkout, and it is told what to link."""
    paths = [*map(str, PATHS), *filter(None, [base.get("PYTHONPATH")])]
    programs = os.pathsep.join([base.get("PATH", os.defpath), str(SITE / "bin")])  # ninja, if there is no other
    kept = {"FLASHINFER_WORKSPACE_BASE": str(SITE.parent)}
    linking = linked(base, SITE.parent / "driver")
    return {**kept, **base, **linking, "PATH": programs, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


if __name__ == "__main__":
    main(sys.argv[1:])
