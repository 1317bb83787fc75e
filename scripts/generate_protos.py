"""Writes specsplit/v1 from protos/specsplit/v1, or with --check says whether it is what the protos give.

The generator lives in a venv of its own (build/protos-venv): what it writes runs on its own version of grpcio and protobuf and on newer
ones, never on older ones, so it is pinned to the oldest that pyproject.toml admits.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
GENERATED = ROOT / "specsplit" / "v1"
VENV = ROOT / "build" / "protos-venv"
REQUIREMENTS = ("grpcio-tools==1.76.0", "protobuf==6.33.6", "mypy-protobuf==5.1.0", "setuptools==80.9.0")
STAMP = VENV / "requirements.txt"


def set_up() -> None:
    """Make the generator's venv, once."""
    if STAMP.is_file() and STAMP.read_text() == "\n".join(REQUIREMENTS):
        return
    print(f"protos: setting up {VENV.relative_to(ROOT)} with {REQUIREMENTS[0]}", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    venv.create(VENV, with_pip=True)
    subprocess.run([VENV / "bin/python", "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    STAMP.write_text("\n".join(REQUIREMENTS))


def generate(folder: Path) -> None:
    """Write the code of every proto below `folder`."""
    out = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
    plugin = VENV / "bin/protoc-gen-mypy_grpc"
    subprocess.run(
        [
            VENV / "bin/python",
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={PROTOS}",
            f"--plugin=protoc-gen-mypy_grpc={plugin}",
            f"--mypy_grpc_out=quiet:{folder}",
            *out,
            *sorted(str(proto.relative_to(PROTOS)) for proto in PROTOS.rglob("*.proto")),
        ],
        check=True,
        cwd=PROTOS,
    )
    for empty in (folder / "specsplit" / "v1").glob("common_pb2_grpc.*"):
        empty.unlink()  # no service in it


def differences(fresh: Path, committed: Path) -> list[str]:
    """Names of generated files that are missing, left over or not the same."""
    names = {path.name for folder in (fresh, committed) for path in folder.glob("*_pb2*.py*")}
    return sorted(name for name in names if _text(fresh / name) != _text(committed / name))


def _text(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


def main() -> int:
    """Exit 1 with one line per difference if --check finds any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    set_up()
    with tempfile.TemporaryDirectory() as name:
        generate(Path(name))
        fresh = Path(name) / "specsplit" / "v1"
        changed = differences(fresh, GENERATED)
        if check:
            for each in changed:
                print(
                    f"protos: specsplit/v1/{each} is not what protos/specsplit/v1 gives; run `make protos` and commit the result"
                )
            return 1 if changed else 0
        for each in changed:
            (GENERATED / each).unlink(missing_ok=True)
            if (fresh / each).is_file():
                shutil.copy(fresh / each, GENERATED / each)
            print(f"protos: specsplit/v1/{each}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
