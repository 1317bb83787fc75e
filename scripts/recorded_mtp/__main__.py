"""Writes tests/data/mtp: what vLLM's own MTP layers compute on a CPU from the tiny checkpoints of tests/model/heads/mtp_recorded.py.

Run by hand, with the environment of vLLM that `make peers` makes:

    .venv/bin/python -m scripts.recorded_mtp [NAME ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from safetensors.torch import save_file

from benchmarks.peers.installing import python_of
from tests.model.heads.mtp_recorded import RECORDED, Recorded, tokens_and_states
from tests.model.heads.published import write

OUT: Final = Path(__file__).resolve().parents[2] / "tests" / "data" / "mtp"
STEP: Final = Path(__file__).with_name("vllm_step.py")


def main() -> None:
    vllm = python_of("vllm")
    if not vllm.is_file():
        sys.exit(f"there is no {vllm}: run make peers")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECORDED)}; all by default")
    names = parser.parse_args().names or list(RECORDED)
    if unknown := sorted(set(names) - set(RECORDED)):
        parser.error(f"unknown: {', '.join(unknown)}; expected {', '.join(RECORDED)}")
    OUT.mkdir(parents=True, exist_ok=True)
    for name in names:
        with TemporaryDirectory() as temporary:
            folder = write_for_vllm(Path(temporary), RECORDED[name]())
            out = OUT / f"{name}.safetensors"
            subprocess.run([vllm, STEP, folder, str(RECORDED[name]().first), out], check=True)
        print(f"{name}: {out.stat().st_size:,} bytes")


def write_for_vllm(folder: Path, recorded: Recorded) -> Path:
    """Write vLLM's copy of a folder, and beside the weights what the layers are given (`given`)."""
    tensors = {name: recorded.tensors_there(name, tensor) for name, tensor in recorded.tensors.items()}
    write(folder, {**recorded.facts, **recorded.facts_there}, tensors)
    tokens, states = tokens_and_states()
    save_file({"tokens": tokens, "states": states}, folder / "given")
    return folder


if __name__ == "__main__":
    main()
