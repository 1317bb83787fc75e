"""`specsplit demo`: three services on this machine, a real prompt, and what speculation did for it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from specsplit.cli.drafters import NONE
from specsplit.cli.failures import fail
from specsplit.cli.folders import DRAFTS, POCKET_LAYERS, TARGET, drafts_beside, inflation, is_model, pocket
from specsplit.cli.generate import run
from specsplit.cli.local import LocalCluster
from specsplit.cli.paint import Painter, legend
from specsplit.cli.screen import Screen, text
from specsplit.cli.signals import sigterm_as_ctrl_c
from specsplit.client import Client, Result, make_request
from specsplit.errors import InvalidRequest
from specsplit.values import DrafterKind
from specsplit.values.bounds import INT32_MAX, UINT32_MAX, UINT64_MAX
from specsplit.values.sampling import MAX_TEMPERATURE

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
_PAUSE_S = 1.0
"""Between two generations for those who watch the page."""
_DRAFTS = ", ".join(f"{name}/" for name in DRAFTS.values())


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
    models: Annotated[
        Path | None,
        typer.Option(
            "--models",
            metavar="FOLDER",
            help=f"Holds {TARGET}/ and one of {_DRAFTS}, of which the first is used; models/pocket if left out.",
        ),
    ] = None,
    prompt: Annotated[str, typer.Option("--prompt", "-p", metavar="TEXT", help="Python source to continue.")] = PROMPT,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, max=UINT32_MAX, help="Generated tokens at most.")
    ] = 160,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, max=MAX_TEMPERATURE, help="0 picks the likeliest token.")
    ] = 0.6,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=UINT64_MAX, help="Selects the noise at temperatures above 0.")
    ] = 3,
    inflate_layers: Annotated[
        int,
        typer.Option(
            "--inflate-layers",
            min=0,
            max=INT32_MAX,
            help="Make the target this deep with layers that change nothing; 0: as it is.",
        ),
    ] = POCKET_LAYERS,
    page: Annotated[
        bool,
        typer.Option(
            "--page",
            help="Serve the coordinator's page on this machine, print its address, and go on generating until Ctrl-C.",
        ),
    ] = False,
) -> None:
    """Start three services on this machine, generate with a drafter and without, and compare."""
    folder = models or pocket("--models")
    kind, draft = _best_draft(folder)
    console = Screen()
    console.print(
        f"Starting coordinator, verifier and {kind.value} drafter on this machine, with the models in {folder}."
    )
    if inflate_layers:
        console.print(inflation(inflate_layers))
    places = _Page()
    cluster = LocalCluster(
        folder / TARGET,
        {kind: draft},
        drafters=[kind],
        coordinator={"web_listen": "127.0.0.1:0"} if page else {},
        verifier={"inflate_layers": inflate_layers} if inflate_layers else {},
        listener=places.hear,
    )
    wait = console.status("loading models") if console.is_terminal else nullcontext()
    try:
        with sigterm_as_ctrl_c(), ExitStack() as ending:
            ending.callback(cluster.stop)
            with wait:
                cluster.start()
            if page:
                console.print(f"The page is at {places.url}")
            with cluster.client() as client:
                options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
                _compare(client, console, kind, prompt, options)
                if page:
                    console.print(
                        f"The same prompt is now continued again and again, for {places.url}; Ctrl-C ends it."
                    )
                    _go_on(client, kind, prompt, options)
    except KeyboardInterrupt:
        raise typer.Abort from None


def _compare(client: Client, console: Console, kind: DrafterKind, prompt: str, options: dict[str, float]) -> None:
    _generate(client, None, kind, prompt[:80], {**options, "max_tokens": 8})  # the first steps of a process are slow
    console.print(legend())
    console.print()
    console.print(text(prompt, "dim"), end="", soft_wrap=True)
    drafted = _generate(client, Painter(console), kind, prompt, options)
    console.print()
    plain = _generate(client, None, NONE, prompt, options)
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


def _go_on(client: Client, kind: DrafterKind, prompt: str, options: dict[str, float]) -> None:
    """Generate with one seed after the other, a moment apart, until Ctrl-C, which ends this without a complaint."""
    with suppress(KeyboardInterrupt):
        for seed in count(int(options["seed"]) + 1):
            _generate(client, None, kind, prompt, {**options, "seed": seed})
            time.sleep(_PAUSE_S)


def _generate(client: Client, painter: Painter | None, drafter: str, prompt: str, options: dict[str, float]) -> _Run:
    request = make_request(
        prompt,
        drafter=drafter,
        max_tokens=int(options["max_tokens"]),
        temperature=options["temperature"],
        seed=int(options["seed"]),
    )
    started = time.monotonic()
    result = run(client, request, painter)
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


def _best_draft(folder: Path) -> tuple[DrafterKind, Path]:
    """The best kind of drafter that `folder` holds a model for. Raises InvalidRequest if there is none, or no target."""
    found = drafts_beside(folder / TARGET)
    if not found or not is_model(folder / TARGET):
        raise InvalidRequest("--models", f"there are no {TARGET}/ and one of {_DRAFTS} with models in {folder}")
    return next(iter(found.items()))
