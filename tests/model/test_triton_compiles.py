"""The attention kernels are code for GPUs: triton compiles them for some that are not here, and they have room there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

COMPILE = """
import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from specsplit.model.attention.triton.kernels import laying_out, split_kv
from specsplit.model.attention.triton.forward import constants
from specsplit.model.attention.triton.tiles import Tile
from specsplit.model.pages.geometry import Layer, Span

LAYERS = {
    "plain": Layer(32, 8, 128, 128),
    "windows, caps and sinks": Layer(64, 8, 64, 64, Span(window=128), 30.0, True),
    "wide": Layer(8, 4, 512, 512),
    "uneven": Layer(16, 16, 192, 128),
    "latents": Layer(128, 1, 576, 512, values_in_keys=True),
}
TYPES = {"out": "*bf16", "query": "*bf16", "keys": "*bf16", "values": "*bf16", "sinks": "*bf16", "parts": "*fp32", "weights": "*fp32",
    "tables": "*i32", "windows": "*i32", "plan": "*i32", "scale": "fp32", "softcap": "fp32"}
UNALIGNED = {"query_token", "query_head", "table_width", "tiles_at", "rows_at", "low_at", "span", "sinks", "windows", "scale", "softcap"}
names = split_kv.attend.arg_names
arch = int(sys.argv[1])
for name, layer in LAYERS.items():
    for tokens in (1, 64):
        tile = Tile.of(layer, tokens, 1, torch.bfloat16)
        fixed = {**constants(layer, tile), "PAGE": 16, "SPLIT": tokens == 1, "WINDOWED": False, "GATHERED": True}
        signature = {name: "constexpr" if name in fixed else TYPES.get(name, "i32") for name in names}
        aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name not in fixed and name not in UNALIGNED}
        source = ASTSource(fn=split_kv.attend, signature=signature, constexprs=fixed, attrs=aligned)
        made = compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": tile.warps, "enable_fp_fusion": True})
        assert made.asm["cubin"]
        print(made.metadata.shared, name)
    fixed = {"VALUE_WIDTH": layer.value_width, "SINKS": layer.sinks, "BLOCK_V": constants(layer, tile)["BLOCK_V"]}
    signature = {name: "constexpr" if name in fixed else TYPES.get(name, "i32") for name in split_kv.merge.arg_names}
    source = ASTSource(fn=split_kv.merge, signature=signature, constexprs=fixed)
    made = compile(source, target=GPUTarget("cuda", arch, 32), options={"enable_fp_fusion": True})
    assert made.asm["cubin"]
    print(made.metadata.shared, name)
TYPES = {"words": "*i32", "lengths": "*i64", "tail": "*i64", "sees": "*u8", "positions": "*i64"}
for bounds in ((0,), (0, 128, -8192)):
    fixed = {"SIZES": (1, 4, 16), "BOUNDS": bounds}
    signature = {name: "constexpr" if name in fixed else TYPES.get(name, "i32") for name in laying_out.lay_out.arg_names}
    source = ASTSource(fn=laying_out.lay_out, signature=signature, constexprs=fixed)
    made = compile(source, target=GPUTarget("cuda", arch, 32))
    assert made.asm["cubin"]
    print(made.metadata.shared, bounds)
"""
ROOM = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
"""Bytes of shared memory that a program may have, by compute capability (CUDA C++ Programming Guide, technical specifications)."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("architecture", sorted(ROOM))
def test_every_kind_of_layers_is_compiled_and_has_room(architecture: int, tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(architecture)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=590,
    )
    assert done.returncode == 0, done.stderr
    shared = [int(line.split()[0]) for line in done.stdout.splitlines()]
    assert len(shared) == 17 and max(shared) <= ROOM[architecture]
