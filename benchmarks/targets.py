"""The `targets` benchmark: what a forward costs, and what is kept of a text, by the kind of a model's layers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from matplotlib.figure import Figure
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from benchmarks import latents, report
from benchmarks.context import Context
from benchmarks.plots import lines
from benchmarks.spread import spread
from specsplit.model import CausalLM, Geometry, PageTable, Row

WINDOW = 256
CONTEXTS = (256, 1024, 4096)
NODES = (1, 8, 32)
PAGE = 16
READ = 256
"""Tokens of a prompt that are read at once."""
_ALIKE: dict[str, object] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
}
_LATENT: dict[str, object] = {
    "num_key_value_heads": 8,
    "head_dim": 16,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "first_k_dense_replace": 4,
    "n_group": 1,
    "topk_group": 1,
}
_MIXED: dict[str, object] = {
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": WINDOW,
    "query_pre_attn_scalar": 32,
}
_DELTA: dict[str, object] = {
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "mlp_only_layers": [0, 1, 2, 3],
    "linear_num_value_heads": 8,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "all tokens": ("llama", {}),
    "a window": ("mistral", {"sliding_window": WINDOW}),
    "windows, 3 of 4": ("gemma3_text", _MIXED),
    "windows, 3 of 4, all kept": ("gemma3_text", _MIXED),
    "latent attention": ("deepseek_v3", _LATENT),
    "latent attention, heads kept": ("deepseek_v3", _LATENT),
    "linear attention, 3 of 4": ("qwen3_next", _DELTA),
    "state spaces": ("mamba2", {"head_dim": 64, "num_heads": 8, "expand": 2, "state_size": 64, "n_groups": 1}),
}
COLUMNS = {
    "kind": "layers",
    "kv_token": "KV of a token, bytes",
    "states": "states of a session, bytes",
    "context": "tokens before",
    "kept": "kept of them, KiB",
    "nodes": "nodes",
    "median_ms": "forward, median, ms",
    "low_ms": "first quartile",
    "high_ms": "third quartile",
}


def config_of(kind: str) -> PretrainedConfig:
    """The config of a small model of a kind."""
    name, own = KINDS[kind]
    return AutoConfig.for_model(name, **_ALIKE | own)


def load(kind: str) -> CausalLM:
    """A model of a kind with random weights, and room for the longest text."""
    torch.manual_seed(0)
    pages = (max(CONTEXTS) + max(NODES)) // PAGE + 2
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(config_of(kind)).save_pretrained(folder)
        return CausalLM.load(
            Path(folder),
            num_pages=pages,
            page_size=PAGE,
            latent_cache=not kind.endswith("heads kept"),
            window_tokens=None if kind.endswith("all kept") else lambda window, _: window + READ + 2 * PAGE,
        )


def kept_bytes(lm: CausalLM, context: int) -> int:
    """KV that a session holds of so many tokens: of whole pages, less those that no token to come sees in a layer."""
    kept, windows = 0, lm.pool.windows
    for layer, in_window in zip(lm.kv.geometry.layers, lm.kv.in_window, strict=True):
        seen = windows if in_window and windows is not None else lm.pool
        tokens = lm.pool.pages_for(context) * PAGE - seen.first_seen(context) // PAGE * PAGE
        kept += tokens * Geometry((layer,)).numbers * lm.kv.stored.itemsize
    return kept


def forwards(lm: CausalLM, repeats: int) -> Iterator[tuple[int, int, list[float]]]:
    """(tokens before, nodes of the tree, seconds of each of `repeats` forwards)."""
    table, read = PageTable(lm.pool), 0
    table.reserve(max(CONTEXTS) + max(NODES))
    for context in CONTEXTS:
        while read < context:
            stop = min(read + READ, context)
            table.see(read, stop)
            chunk = Row.chunk([position % 997 for position in range(read, stop)], table.upto(stop))
            lm.forward([chunk])
            lm.keep_states([(chunk, chunk.num_tokens - 1)])
            read = stop
        for nodes in NODES:
            table.see(context, context + nodes)
            tree = Row.tree(
                list(range(nodes)), [-1, *(node // 2 for node in range(nodes - 1))], table.upto(context + nodes)
            )
            lm.forward([tree])
            yield context, nodes, [timed(lm, tree) for _ in range(repeats)]
    table.release()


def timed(lm: CausalLM, row: Row) -> float:
    """Seconds of a forward."""
    started = time.perf_counter()
    lm.forward([row])
    return time.perf_counter() - started


def run(context: Context) -> None:
    """Measure, print, write."""
    repeats, rows = 3 if context.quick else 30, list[report.Row]()
    with context.progress("targets", len(KINDS)) as advance:
        for kind in KINDS:
            lm = load(kind)
            kv_token = lm.kv.geometry.numbers * lm.kv.stored.itemsize
            states = 0 if lm.states is None else lm.states.session_bytes
            for before, nodes, seconds in forwards(lm, repeats):
                found = spread([each * 1e3 for each in seconds])
                kept = (kept_bytes(lm, before) + states) / 1024
                rows.append({"kind": kind, "kv_token": kv_token, "states": states, "context": before, "kept": round(kept, 1),
                             "nodes": nodes, "median_ms": found.median, "low_ms": found.low, "high_ms": found.high})  # fmt: skip
            advance(kind)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        lines(
            axes,
            [row for row in rows if row["nodes"] == NODES[1]],
            lambda row: str(row["kind"]),
            "context",
            "median_ms",
        )
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens before")
        axes.set_ylabel(f"forward of a tree of {NODES[1]} nodes, median, ms")
        axes.legend(fontsize=6)

    notes = [
        "Models of four layers, width 256, random weights, float32. Of a window and of states no more is kept however long the text is.",
        "Where three layers of four see a window, they have pages of their own (window_kv_tokens), or all pages, as the fourth has.",
        "A recurrent layer takes a tree depth by depth: 8 nodes are four levels here, 32 are six.",
        "Latent attention keeps a latent of 64 numbers and a shared part of 16 of a token and layer, or as heads (latent_cache = off) 8 "
        "keys of 48 and 8 values of 32. What it comes to for models that people run: [latents.md](latents.md).",
    ]
    settings: dict[str, object] = {"window": WINDOW, "page": PAGE, "repeats": repeats}
    context.finish("targets", "Targets by the kind of their layers", COLUMNS, rows, settings, notes, draw)
    context.write(latents.report(context.machine))
