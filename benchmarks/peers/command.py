"""`python -m benchmarks peers`: vLLM, llama.cpp and transformers beside this project on a CPU, with drafting by lookup and without.

`make peers` makes their environments first. Each is a process that stays; they take turns in every round. The status is 1 if two of them
that have the same weights wrote different texts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.context import Context
from benchmarks.peers import llama_child, transformers_child, vllm_child
from benchmarks.peers.installing import CHAT, python_of, weights_of
from benchmarks.peers.peer import Peer, PeerError, Running, running
from benchmarks.peers.prompts import WITHIN, prompts_of
from benchmarks.peers.table import COLUMNS, EIGHT, LOADS, PREFILL, SINGLE, Results, disagreements, rows_of
from benchmarks.plots import sideways
from benchmarks.report import Row
from benchmarks.runner import begun, parser_of, rounds
from specsplit.cli.screen import Screen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEW = 48
THREADS = 2
LOGS = Path("build/peers/logs")
LOOKUP = ", lookup"
_AT_ONCE = {SINGLE: 1, EIGHT: len(WITHIN), PREFILL: 1}


def peers_of(model: Path) -> list[Peer]:
    """All engines that there may be. The first one's texts are those that the others are held to."""
    here = Path(sys.executable)
    vllm, llama = python_of("vllm"), python_of("llama")
    pairs = [
        Peer("transformers", "transformers_child", here, model),
        Peer("specsplit", "specsplit_child", here, model),
        Peer("vLLM", "vllm_child", vllm, model),
        Peer("llama.cpp, float32", "llama_child", llama, weights_of("f32")),
        Peer("llama.cpp, Q8_0", "llama_child", llama, weights_of("q8_0"), exact=False),
    ]
    return [each for pair in pairs for each in (pair, _drafting(pair))]


def _drafting(peer: Peer) -> Peer:
    return Peer(peer.name + LOOKUP, peer.module, peer.python, peer.model, drafts=True, exact=peer.exact)


def there(peers: Sequence[Peer], context: Context) -> Iterator[Peer]:
    """Those that can be started here; why the others cannot is printed."""
    for peer in peers:
        missing = [str(path) for path in (peer.python, peer.model) if not path.exists()]
        if missing:
            context.console.print(f"left out: {peer.name}: there is no {missing[0]} (make peers)", highlight=False)
        else:
            yield peer


def main(words: Sequence[str]) -> None:
    """Measure, print, write."""
    parser = parser_of("peers", __doc__, "--quick", "--docs")
    parser.add_argument("--model", type=Path, default=CHAT, help="folder of another model; llama.cpp keeps its own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", action="append", metavar="WORD", help="engines whose name begins so; may be said again"
    )
    options = parser.parse_args(words)
    context = begun(["peers", *words], Screen(width=200), quick=not options.docs)
    peers = [each for each in peers_of(options.model) if not options.only or each.name.startswith(tuple(options.only))]
    size = {"repeats": 1, "count": 2, "new": 8} if options.quick else {"repeats": options.rounds}
    failures = measure(context, list(there(peers, context)), options.model, **size)
    sys.exit(1 if failures else 0)


def measure(
    context: Context,
    peers: Sequence[Peer],
    model: Path,
    repeats: int,
    *,
    count: int = len(WITHIN),
    new: int = NEW,
    threads: int = THREADS,
) -> list[str]:
    """Run all peers, print and write -> what must not be, in sentences."""
    prompts = prompts_of(model, count)
    with ExitStack() as stack:
        present, lost = _start(context, peers, threads, stack)
        results = _rounds(context, present, prompts, repeats, new) if present else {}
    settings: dict[str, object] = {
        "prompts": f"{count} of {min(map(len, prompts))} to {max(map(len, prompts))} tokens",
        "new tokens": new,
        "threads": threads,
        "rounds": repeats,
    }
    return report(context, list(results.values()), settings, lost)


def _start(context: Context, peers: Sequence[Peer], threads: int, stack: ExitStack) -> tuple[list[Running], list[str]]:
    """Start them one after the other -> those that run, and why others do not."""
    LOGS.mkdir(parents=True, exist_ok=True)
    present: list[Running] = []
    lost: list[str] = []
    for peer in peers:
        context.console.print(f"starting {peer.name}", highlight=False)
        log = LOGS / f"{peer.name.replace(', ', '-').replace(' ', '-')}.log"
        try:
            present.append(stack.enter_context(running(peer, threads, log)))
        except PeerError as error:
            lost.append(f"Left out: {error}; its log is {log}.")
            context.console.print(lost[-1], highlight=False)
    return present, lost


def _rounds(
    context: Context, present: Sequence[Running], prompts: list[list[int]], repeats: int, new: int
) -> dict[str, Results]:
    results = {each.peer.name: Results(each.peer, each.load_s) for each in present}
    cells = [(each, load) for load in LOADS for each in present]
    for (peer, load), repeat in rounds(
        context, "peers", cells, repeats, lambda cell: f"{cell[0].peer.name}, {cell[1]}"
    ):
        mine = results[peer.peer.name]
        if load in mine.cannot:
            continue
        wanted, tokens = (1, sum(map(len, prompts))) if load == PREFILL else (new, new * len(prompts))
        mine.take(load, tokens, peer.ask(prompts, wanted, _AT_ONCE[load]), counts=repeat > 0)
        mine.resident_gb = max(mine.resident_gb, peer.resident_gb)
    return results


def report(context: Context, results: list[Results], settings: dict[str, object], lost: list[str]) -> list[str]:
    """Print and write a row for each -> what must not be, in sentences."""
    if not results:
        return ["No engine could be started."]
    own = results[0].texts[0]
    failures = disagreements(results, own)
    pairs = {each.peer.name: "vLLM" + LOOKUP if each.peer.drafts else "vLLM" for each in results}
    rows = rows_of(results, own, pairs)
    cannot = [f"{each.peer.name}, {load}: {why}." for each in results for load, why in each.cannot.items()]
    lookup = " to ".join(map(str, vllm_child.LOOKUP))
    drafted = f"vLLM {vllm_child.TOKENS} (lookup {lookup}), transformers {transformers_child.TOKENS}, llama.cpp {llama_child.TOKENS}"
    settings |= {"prefix cache": "off", "tokens drafted": drafted}
    notes = [
        "Greedy, ignore_eos, float32 unless named, from the first request to the last token, prompts included. Engines are processes that "
        "stay and take turns; medians and quartiles of rounds. Of vLLM: in the same round, with lookup of vLLM with lookup.",
        "Prefill: prompts one at a time, one token each. Memory: proportional, of all its processes, the most. Start: until it is loaded.",
        "specsplit: client, coordinator and verifier are processes of their own, on the same two cores; the verifier looks up by itself.",
        *cannot, *lost, *(failures or ["All texts of exact weights are equal, token for token."]),
    ]  # fmt: skip
    context.finish("peers", "Engines on a CPU, side by side", COLUMNS, rows, settings, notes, partial(draw, rows=rows))
    return failures


def draw(figure: Figure, rows: list[Row]) -> None:
    """A panel for each load."""
    panels: Any = figure.subfigures(1, len(LOADS))
    for panel, load in zip(panels, LOADS, strict=True):
        sideways(
            panel,
            rows,
            lambda row: str(row["peer"]).replace(LOOKUP, ",\nlookup"),
            f"{load} median",
            f"{load}, tokens/s",
        )
