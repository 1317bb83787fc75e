"""The image that the Dockerfile stands on: the registry's own or, where no registry answers, one that is made of Debian's packages.

The stand-in has Debian's Python of the same version, and what this machine's pip needs to reach its packages: its certificates, its
configuration, and the wheels on its disk. So the Dockerfile builds unchanged.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.containers.engine import Engine
from scripts.containers.shell import Failed, run

NAME = "python:3.11-slim-bookworm"
_SUITE = "bookworm"
_PACKAGES = "python3,python3-pip,ca-certificates"
_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


def provide(engine: Engine, folder: Path) -> str:
    """Make the base image; where it came from, in words. `folder` is for what is needed on the way."""
    try:
        engine.docker("pull", "--quiet", NAME, timeout_s=180)
        return "pulled from its registry"
    except Failed:
        with _memory(folder / "root") as root:
            _bootstrap(root)
            _adapt(root)
            _import(engine, root)
        return "a stand-in of Debian's packages, since no registry answers"


@contextmanager
def _memory(root: Path) -> Iterator[Path]:
    """A file system in memory (some 500 MB): dpkg syncs every file that it writes, which takes three times as long on a disk."""
    root.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "dev,exec,suid,mode=755", "tmpfs", root])
    try:
        yield root
    finally:
        run(["umount", "--lazy", root])


def _bootstrap(root: Path) -> None:
    options = ["--variant=minbase", f"--include={_PACKAGES}"]
    run(["debootstrap", *options, _SUITE, root], timeout_s=400)


def _adapt(root: Path) -> None:
    """Make Debian's Python behave as the image's, and pip as on this machine."""
    for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    (root / "usr/bin/python").symlink_to("python3")
    shutil.rmtree(root / "var/cache/apt/archives")
    shutil.rmtree(root / "var/lib/apt/lists")
    settings = pip_settings()
    if "cert" in settings:
        shutil.copyfile(settings["cert"], root / _BUNDLE.relative_to("/"))
        settings["cert"] = str(_BUNDLE)
    for place in map(Path, settings.get("find-links", "").split()):
        if place.is_dir():
            shutil.copytree(place, root / place.relative_to("/"))
    lines = [f"{name} = {value}" for name, value in settings.items()]
    (root / "etc/pip.conf").write_text("\n".join(["[global]", *lines, ""]))


def pip_settings() -> dict[str, str]:
    """This machine's configuration of pip, from files and the environment, less indexes and constraints that lie on its disk."""
    lines = run([sys.executable, "-m", "pip", "config", "list"]).splitlines()
    settings: dict[str, str] = {}
    for line in sorted(lines, key=lambda line: line.startswith(":env:")):  # the environment wins
        name, equals, value = line.partition("=")
        if equals:
            settings[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    settings.pop("constraint", None)  # the image has the project's
    for name in ("index-url", "extra-index-url"):
        kept = [url for url in settings.pop(name, "").split() if not url.startswith("file:")]
        if kept:
            settings[name] = " ".join(kept)
    return settings


def _import(engine: Engine, root: Path) -> None:
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(
            ["docker", "import", "-", NAME], stdin=tar.stdout, stdout=subprocess.DEVNULL, env=engine.env, check=True
        )
