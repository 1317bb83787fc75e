"""`make gpu-kernels`: FlashInfer's attention kernels for the targets that `make gpu` measures, compiled where there is nvcc and no GPU.

They take minutes to compile, which a run of nine minutes does not have. They lie in build/wheels/kernels, beside the wheels, and
`make gpu` puts them where FlashInfer looks for kernels that need not be compiled.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from scripts import gpu_carried
from scripts.gpu_toolkit import linked, toolkit

ROOT = Path(__file__).resolve().parents[1]
FOLDER = gpu_carried.FOLDER / "kernels"
WORK = ROOT / "build" / "gpu-kernels"
KINDS = ((64, "bfloat16"), (128, "bfloat16"), (64, "float16"))
"""Widths of heads and types: of the pocket and 1B targets, of the 8B one, and of the target whose captured forwards are compared."""


def main(words: list[str]) -> None:
    """Compile for one architecture, 9.0a (Hopper) unless another is named, and say how large everything is that is carried.

    The status is 2 if something is missing, and 1 if that is too large.
    """
    architecture = words[0] if words else "9.0a"
    why = missing()
    if why is not None:
        print(f"gpu-kernels: {why}", file=sys.stderr)
        sys.exit(2)
    os.environ |= linked(os.environ, WORK / "driver")
    os.environ |= {"FLASHINFER_CUDA_ARCH_LIST": architecture, "FLASHINFER_WORKSPACE_BASE": str(WORK)}
    shutil.rmtree(FOLDER, ignore_errors=True)
    for head_dim, dtype in KINDS:
        began = time.monotonic()
        library = compiled(head_dim, dtype)
        (FOLDER / library.stem).mkdir(parents=True)
        shutil.copy(library, FOLDER / library.stem)
        size, took = library.stat().st_size / 2**20, time.monotonic() - began
        print(f"gpu-kernels: heads of {head_dim} in {dtype}, {architecture}: {size:.1f} MiB, {took:.0f} s")
    gpu_carried.tell_sum("gpu-kernels")


def missing() -> str | None:
    """Say what is not there to compile with; None if nothing is."""
    if toolkit(os.environ) is None:
        return "there is no nvcc on PATH, nor in /usr/local/cuda; install the CUDA toolkit, or say CUDA_HOME=path"
    if shutil.which("ninja") is None:
        return "there is no ninja on PATH; pip install ninja"
    return None if find_spec("flashinfer") else "there is no flashinfer; make setup installs it"


def compiled(head_dim: int, dtype: str) -> Path:
    """Compile the kernels for heads so wide, of one type everywhere -> the library."""
    import torch  # noqa: PLC0415 (seconds, and FlashInfer reads its environment when it is imported)
    from flashinfer.jit.attention import gen_batch_prefill_module  # noqa: PLC0415

    kind: torch.dtype = getattr(torch, dtype)
    spec = gen_batch_prefill_module(
        backend="fa2", dtype_q=kind, dtype_kv=kind, dtype_o=kind, dtype_idx=torch.int32,
        head_dim_qk=head_dim, head_dim_vo=head_dim, pos_encoding_mode=0,
        use_sliding_window=False, use_logits_soft_cap=False, use_fp16_qk_reduction=False,
    )  # fmt: skip
    spec.build(verbose=False)
    return spec.jit_library_path


if __name__ == "__main__":
    main(sys.argv[1:])
