"""Kernels are code for GPUs: triton compiles them for one that is not here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

COMPILE = """
import sys

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from specsplit.model.layers.kernels import compaction, elementwise, low_rank
from specsplit.sampling.kernels import filtering, picking, walking

TYPES = {
    picking._best_of_block: "*bf16 i32 *fp32 *i64 *i64 *fp32 *fp32 *i32 i32",
    picking._best_of_row: "*fp32 *i32 *i64 i32",
    filtering._largest_of_part: "*bf16 i32 *i64 *fp32 i32",
    filtering._weigh_part: "*bf16 i32 *i64 *fp32 *fp32 *i32 *i32 *fp32 *fp32 *i64 *fp32 i32 i32",
    filtering._bar_of_row: "*i64 *fp32 *fp32 *i32 *i32 *fp32 *fp32 *i64 *fp32 *fp32 *fp32 i32 i32 i32",
    walking._walk: "*i64 *i64 *i64 *i64 *i64 *i64 *i64 i32",
    elementwise._rms_norm: "*bf16 *bf16 *bf16 *bf16 *bf16 fp32 i32",
    elementwise._gated: "*bf16 *bf16 i32",
    elementwise._rotate: "*bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *i64 i32 i32 *bf16 *bf16 fp32 fp32",
    low_rank._low_rank_down: "*bf16 *bf16 *i32 *i32 *fp32 i32 i32",
    low_rank._low_rank_up: "*fp32 *bf16 *i32 *i32 *bf16 i32",
    compaction._compact: "*bf16 *i32 i32 *i64 *i64 *i64 *i64 i32 i32 i32 i32",
}
CONSTANTS = {"BLOCK": 512, "BLOCKS": 128, "UNUSED": 16, "WIDTH": 256, "PART": 4096, "PARTS": 32, "DIGITS": 4}
CONSTANTS |= {"ADDED": True, "HEADS": 32, "KV_HEADS": 8, "HALF": 64, "NORMED": True}
CONSTANTS |= {"ROWS": 16, "RANK": 64, "DEPTH": 64}
ARCHITECTURE = int(sys.argv[1])

for kernel, types in TYPES.items():
    constants = {name: CONSTANTS[name] for name in kernel.arg_names if name in CONSTANTS}
    if kernel is elementwise._rms_norm:
        constants["BLOCK"] = 4096
    if kernel is low_rank._low_rank_up:
        constants |= {"BLOCK": 128, "PARTS": 8}
    if kernel is elementwise._rotate:
        constants["WIDTH"] = 128
    signature = dict(zip(kernel.arg_names, [*types.split(), *["constexpr"] * len(constants)], strict=True))
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    made = compile(source, target=GPUTarget("cuda", ARCHITECTURE, 32), options={"enable_fp_fusion": False})
    print(kernel.__name__, *(line.split()[0] for line in made.asm["ptx"].splitlines() if "\\tdiv." in line))
"""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_every_kernel_compiles_for_a_gpu_and_divides_as_ieee_754_has_it(architecture: int, tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(architecture)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    compiled = {name: set(divisions) for name, *divisions in map(str.split, done.stdout.splitlines())}
    assert len(compiled) == 12
    assert compiled["_best_of_block"] == compiled["_weigh_part"] == compiled["_bar_of_row"] == {"div.rn.f32"}
