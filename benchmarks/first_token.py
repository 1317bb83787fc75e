"""From `specsplit up` to a first token, and what the verifier holds then, against its weights and its KV."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path

from benchmarks.context import Context
from benchmarks.plots import sideways
from benchmarks.report import Report, Row
from benchmarks.speedup import CHAT
from benchmarks.spread import Spread, spread
from specsplit.cli.folders import is_model
from specsplit.cli.local import LocalCluster
from specsplit.settings import VerifierSettings
from specsplit.values import DrafterKind

FIRST_TOKEN_S = 5.0
"""Aim, with the chat model."""
RESIDENT = 1.4
"""Aim, of weights and KV."""
TRAFFIC = 8
COLUMNS = {
    "model": "model", "first": "first token, s", "cpu": "CPU of the verifier, s", "resident": "verifier resident, GB",
    "after": "after traffic, GB", "held": "weights + KV, GB", "share": "of weights + KV", "aim": "aims",
}  # fmt: skip


def run(context: Context, repeats: int) -> list[str]:
    """Measure, print, write -> the aims that are missed."""
    folders = {"pocket": context.target, **({"SmolLM2-135M": CHAT} if is_model(CHAT) and not context.quick else {})}
    rows: list[Row] = []
    with context.progress("first token", len(folders) * (repeats + 1)) as advance:
        for name, folder in folders.items():
            taken: list[tuple[float, float, float, float]] = []
            for repeat in range(repeats + 1):
                taken += [measured(folder)][: repeat and 1]
                advance(name)
            rows.append(_row(name, folder, [spread(each) for each in zip(*taken, strict=True)]))
    report = Report(
        "first_token", "From start to a first token", COLUMNS, rows, context.machine, {"repeats": repeats, "quick": context.quick},
        ["Coordinator, verifier (its defaults, 16,384 tokens of KV) and n-gram drafter, from nothing, as `specsplit up` starts them, until "
         "the first token of a short prompt is there; files are in the system's cache. The first start is not counted.",
         f"Traffic: {TRAFFIC} texts of 32 tokens, one after the other. Medians, quartiles in brackets."],
    )  # fmt: skip
    context.write(
        report,
        partial(
            sideways, rows=rows, name=lambda row: str(row["model"]), key="seconds", xlabel="seconds to a first token"
        ),
    )
    return [f"{row['model']}: {why}" for row in rows for why in str(row["missed"]).split("; ") if why]


def measured(folder: Path) -> tuple[float, float, float, float]:
    """Seconds to a first token, those of processors that the verifier took, and GB that it has in memory then and after traffic."""
    began = time.perf_counter()
    cluster = LocalCluster(folder, drafters=[DrafterKind.NGRAM])
    with cluster, cluster.client() as client:
        client.generate("Once", max_tokens=1, ignore_eos=True)
        first, verifier = time.perf_counter() - began, cluster.verifiers[0].pid
        cpu, loaded = cpu_seconds(verifier), resident(verifier)
        for number in range(TRAFFIC):
            client.generate(f"{number} times " * 20, max_tokens=32, ignore_eos=True)
        after = resident(verifier)
    return first, cpu, loaded, after


def cpu_seconds(pid: int) -> float:
    """Seconds of processors that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """GB of a process in memory, libraries included."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:")) / 1e9


def held(folder: Path) -> float:
    """GB of a model's weights, as the files in its folder have them, and of its KV, in float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    numbers = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * width
    kv_tokens = VerifierSettings.host_kv_tokens
    return (sum(each.stat().st_size for each in folder.glob("*.safetensors")) + 4 * numbers * kv_tokens) / 1e9


def _row(name: str, folder: Path, found: list[Spread]) -> Row:
    first, cpu, loaded, after = found
    whole = held(folder)
    share, aimed = loaded.median / whole, folder == CHAT
    missed = [f"{first.median:.3g} s to a first token"] if aimed and first.median > FIRST_TOKEN_S else []
    missed += [f"{share:.2f} of weights and KV in memory"] if aimed and share > RESIDENT else []
    return {
        "model": name, "first": first.told(".3g"), "cpu": cpu.told(".3g"), "resident": loaded.told(".3g"), "after": after.told(".3g"),
        "held": whole, "share": share, "aim": f"{FIRST_TOKEN_S:g} s, {RESIDENT:g}" if aimed else "-", "seconds": first.median,
        "missed": "; ".join(missed),
    }  # fmt: skip
