"""Command lines of others, run as their users run them, with no way to any other machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

POCKET = Path(__file__).parents[2] / "models" / "pocket"
TOKENIZER = POCKET / "target"
_NOBODY = "http://127.0.0.1:9"
"""Where every request goes that is not for this machine: nobody listens there."""


def run(folder: Path, name: str, *arguments: str, offline: bool = True) -> str:
    """What a program of the environment prints; files that it writes by itself are in `folder`, where it runs.

    `offline`: Hugging Face's libraries are told that there is no network. A proxy that is not there sees to it anyway.
    """
    env = {
        **os.environ,
        "HF_HOME": str(folder / "huggingface"),
        "HTTP_PROXY": _NOBODY,
        "HTTPS_PROXY": _NOBODY,
        "NO_PROXY": "127.0.0.1,localhost",
        "COLUMNS": "200",
    }
    if offline:
        env["HF_HUB_OFFLINE"] = "1"
    command = [str(Path(sys.executable).parent / name), *arguments]
    done = subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=270, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
