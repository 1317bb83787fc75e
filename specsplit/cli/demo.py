"""`specsplit demo`: three services on this machine, a real prompt, and what speculation did for it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from specsplit.cli import cluster_options as options
from specsplit.cli.drafters import NONE
from specsplit.cli.failures import fail
from specsplit.cli.folders import DRAFTS, POCKET_LAYERS, TARGET, drafts_beside, inflation, is_model, pocket
from specsplit.cli.generate import run
from specsplit.cli.local import LocalCluster
from specsplit.cli.paint import Painter, legend
from specsplit.cli.screen import Screen, text
from specsplit.cli.signals import sigterm_as_ctrl_c
from specsplit.client import Client, Result, make_request
from specsplit.client.result import Gatherer
from specsplit.errors import InvalidRequest
from specsplit.settings.sources import read_environment
from specsplit.values import DrafterKind

PROMPT = '''\
class Stack:
    """A last-in, first-out collection of items."""

    def __init__(self, items=None):
        self._items = list(items or [])

    def push(self, item):
        """Put an item on top."""
        self._items.append(item)

    def pop(self):
'''
"""Python source, which the pocket models have learnt to continue."""
_PAGE = re.compile(r"page on (http://[^/\s]+/)")
_COORDINATOR = "SPECSPLIT_COORDINATOR_"
_PAUSE_S = 1.0
"""Between two generations for those who watch the page."""


@dataclass(frozen=True)
class _Run:
    """One generation and how long it took."""

    result: Result
    seconds: float

    @property
    def rate(self) -> float:
        """Compute tokens per second, prefill included."""
        return len(self.result.tokens) / self.seconds


def demo(
    *,
    models: options.ModelsOption = None,
    drafter: options.OneDrafterOption = None,
    prompt: options.PromptOption = PROMPT,
    max_tokens: options.MaxTokensOption = 160,
    temperature: options.TemperatureOption = 0.6,
    seed: options.SeedOption = 3,
    inflate_layers: options.DepthOption = POCKET_LAYERS,
    page: options.PageOption = False,
) -> None:
    """Start three services on this machine, generate with a drafter and without, and compare."""
    _check_environment()
    folder = models or pocket("--models")
    kind, draft = _draft(folder, drafter)
    console = Screen()
    console.print(
        f"Starting coordinator, verifier and {kind.value} drafter on this machine, with the models in {folder}."
    )
    if inflate_layers:
        console.print(inflation(inflate_layers))
    shown = _Page() if page else None
    cluster = LocalCluster(
        folder / TARGET,
        {kind: draft},
        drafters=[kind],
        coordinator={} if shown is None else {"web_listen": "127.0.0.1:0"},
        verifier={"inflate_layers": inflate_layers} if inflate_layers else {},
        listener=None if shown is None else shown.hear,
    )
    wanted = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    try:
        with sigterm_as_ctrl_c(), _running(cluster, console), cluster.client() as client:
            _show(client, console, kind, prompt, wanted, shown)
    except KeyboardInterrupt:
        raise typer.Abort from None


def _check_environment() -> None:
    """Raise InvalidRequest if the environment has the coordinator ask for what the client in here does not have."""
    variables, _ = read_environment(_COORDINATOR, ("tls_cert", "tokens_file", "anonymous_clients"))
    for name in variables.keys() & ({"tls_cert"} if "anonymous_clients" in variables else {"tls_cert", "tokens_file"}):
        raise InvalidRequest(
            f"{_COORDINATOR}{name.upper()}",
            "is set, and demo has no options for TLS and tokens; unset it, or use specsplit up and specsplit generate",
        )


@contextmanager
def _running(cluster: LocalCluster, console: Console) -> Iterator[None]:
    """Inside, everyone has joined; a terminal sees that they are waited for."""
    with ExitStack() as ending:
        ending.callback(cluster.stop)
        with console.status("loading models") if console.is_terminal else nullcontext():
            cluster.start()
        yield


def _show(
    client: Client, console: Console, kind: DrafterKind, prompt: str, wanted: dict[str, float], page: _Page | None
) -> None:
    """Generate and compare, and with a page go on until Ctrl-C."""
    if page is not None:
        console.print(f"The page is at {page.url}")
    _compare(client, console, kind, prompt, wanted)
    if page is not None:
        _go_on(client, console, kind, prompt, wanted, page)


def _compare(client: Client, console: Console, kind: DrafterKind, prompt: str, wanted: dict[str, float]) -> None:
    _generate(client, None, kind, prompt[:80], {**wanted, "max_tokens": 8})  # the first steps of a process are slow
    console.print(legend())
    console.print()
    console.print(text(prompt, "dim"), end="", soft_wrap=True)
    drafted = _generate(client, Painter(console), kind, prompt, wanted)
    console.print()
    plain = _generate(client, None, NONE, prompt, wanted)
    console.print(_table(kind, drafted, plain))
    if drafted.result.tokens != plain.result.tokens:
        fail("the two texts differ, which must not be; please report it with the command line", 1)
    console.print(
        f"The text is identical, token for token; with the drafter it came {drafted.rate / plain.rate:.2f} times as fast."
    )


class _Page:
    """Where the coordinator serves its page, as its log says."""

    def __init__(self) -> None:
        self.url = ""

    def hear(self, name: str, line: str) -> None:
        """Take in a line of a service's output."""
        if found := _PAGE.search(line):
            self.url = found[1]


def _go_on(
    client: Client, console: Console, kind: DrafterKind, prompt: str, wanted: dict[str, float], page: _Page
) -> None:
    """Generate with one seed after the other, a moment apart, until Ctrl-C, which ends this without a complaint."""
    with suppress(KeyboardInterrupt):
        console.print(f"The same prompt is now continued again and again, for {page.url}; Ctrl-C ends it.")
        for seed in count(int(wanted["seed"]) + 1):
            _generate(client, None, kind, prompt, {**wanted, "seed": seed})
            time.sleep(_PAUSE_S)


def _generate(client: Client, painter: Painter | None, drafter: str, prompt: str, wanted: dict[str, float]) -> _Run:
    request = make_request(
        prompt,
        drafter=drafter,
        max_tokens=int(wanted["max_tokens"]),
        temperature=wanted["temperature"],
        seed=int(wanted["seed"]),
    )
    started = time.monotonic()
    result = run(client, request, Gatherer(), painter)
    return _Run(result, time.monotonic() - started)


def _table(kind: DrafterKind, drafted: _Run, plain: _Run) -> Table:
    table = Table(title="What speculation did", title_justify="left")
    table.add_column("")
    table.add_column(f"with {kind.value}", justify="right")
    table.add_column("without", justify="right")
    for name, cell in _ROWS.items():
        table.add_row(name, cell(drafted), cell(plain))
    return table


_ROWS: dict[str, Callable[[_Run], str]] = {
    "tokens": lambda run: str(run.result.usage.completion_tokens),
    "steps of the target": lambda run: str(run.result.speculation.steps),
    "accept_length (tokens per step)": lambda run: f"{run.result.speculation.accept_length:.2f}",
    "drafted": lambda run: str(run.result.speculation.drafted),
    "accepted": lambda run: str(run.result.speculation.accepted),
    "hits (next step needed no wait)": lambda run: str(run.result.speculation.hits),
    "misses": lambda run: str(run.result.speculation.misses),
    "seconds": lambda run: f"{run.seconds:.2f}",
    "tokens/s": lambda run: f"{run.rate:.1f}",
}


def _draft(folder: Path, wish: str | None) -> tuple[DrafterKind, Path]:
    """The kind of drafter that is wished for, or else the best that `folder` holds a model for, and the model.

    Raises InvalidRequest if there is none, or no target.
    """
    if wish is not None and wish not in DRAFTS:
        raise InvalidRequest("--drafter", f"is {wish!r}, expected {', '.join(DRAFTS)}")
    found = drafts_beside(folder / TARGET)
    if not found or not is_model(folder / TARGET):
        raise InvalidRequest(
            "--models", f"there are no {TARGET}/ and one of {options.DRAFT_FOLDERS} with models in {folder}"
        )
    if wish is None:
        return next(iter(found.items()))
    kind = DrafterKind(wish)
    if kind not in found:
        raise InvalidRequest("--drafter", f"is {wish}, and there is no model in {folder / DRAFTS[kind]}")
    return kind, found[kind]
