"""`specsplit train-head`: a draft head for one's own target."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from specsplit.cli.progress import metering
from specsplit.cli.say import say
from specsplit.cli.signals import ctrl_c_at_once, sigterm_as_ctrl_c
from specsplit.errors import InvalidRequest, Unavailable
from specsplit.interpreter import importing
from specsplit.training.order import BOUNDS, KINDS, WITH_TRAINER, HeadOrder, option
from specsplit.values import DrafterKind

if TYPE_CHECKING:
    from specsplit.training.figures import Figures

_THOSE: Final = ", ".join(WITH_TRAINER)
_RUN: Final = "specsplit.training.run"
"""Imported by name: it needs torch, which the command line does without."""


def _number(field: str, line: str) -> Any:
    """Make the option of a number, with its bounds."""
    least, most = BOUNDS[field]
    return typer.Option(option(field), min=least, max=most, help=line, show_default=True)


def train_head(
    *,
    target: Annotated[Path, typer.Option("--target", metavar="FOLDER", help="The target that the head is for.")],
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            metavar="FILE",
            help='Lines of {"messages": [...]}, {"prompt": "..."} or {"text": "..."} (.jsonl), or plain text. May be given repeatedly.',
        ),
    ],
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help=f"{', '.join(KINDS)}.")],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FOLDER", help="The head's folder; an unfinished run in it is gone on with."),
    ],
    trainer: Annotated[
        Path | None,
        typer.Option(
            "--trainer",
            metavar="PYTHON",
            help=f"For {_THOSE}: the Python that has speculators; this one or build/speculators if left out.",
        ),
    ] = None,
    as_written: Annotated[
        bool,
        typer.Option(
            "--as-written", help="Learn from answers and texts as they stand; the target writes its own if left out."
        ),
    ] = False,
    temperature: Annotated[
        float, _number("temperature", "Of what the target writes; held-out texts are written greedily.")
    ] = HeadOrder.temperature,
    max_new_tokens: Annotated[
        int, _number("max_new_tokens", "Of what the target writes to one prompt.")
    ] = HeadOrder.max_new_tokens,
    max_length: Annotated[int, _number("max_length", "Tokens of one text, prompt included.")] = HeadOrder.max_length,
    samples: Annotated[
        int | None, _number("samples", "Texts at most, held-out ones included; all if left out.")
    ] = None,
    held_out: Annotated[
        int | None, _number("held_out", "Texts that are not learnt from; one in twenty if left out.")
    ] = None,
    epochs: Annotated[int, _number("epochs", "How often each text is learnt from.")] = HeadOrder.epochs,
    batch_tokens: Annotated[int, _number("batch_tokens", "Tokens of one step.")] = HeadOrder.batch_tokens,
    learning_rate: Annotated[float, _number("learning_rate", "At its peak.")] = HeadOrder.learning_rate,
    depth: Annotated[
        int | None,
        _number(
            "depth",
            "Tokens ahead that the head learns, and layers of multi_layer_eagle; 4, and 7 of dflash and dspark, if left out.",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers",
            metavar="2,12,21",
            help=f"For {_THOSE}: the hidden states that it reads, k behind k decoder layers.",
        ),
    ] = None,
    num_layers: Annotated[
        int | None,
        _number("num_layers", f"For {_THOSE}: its decoder layers; 1 of eagle3, 5 of the others, if left out."),
    ] = None,
    windows: Annotated[
        str | None,
        typer.Option(
            "--windows",
            metavar="1,0",
            help="For dflash, dspark: how many of the last committed tokens each decoder layer sees, 0 for all; all if left out.",
        ),
    ] = None,
    causal: Annotated[
        bool,
        typer.Option(
            "--causal",
            help="For dflash, dspark: a token of a block sees those before it alone; they see one another if left out.",
        ),
    ] = False,
    draft_vocab: Annotated[
        int | None,
        _number("draft_vocab", "For eagle3, dspark: tokens that it proposes; all, 32,000 at most, if left out."),
    ] = None,
    intermediate_size: Annotated[
        int | None,
        _number("intermediate_size", "For multi_layer_eagle: width of its MLPs; the target's if left out."),
    ] = None,
    seed: Annotated[int, _number("seed", "Of everything that is drawn.")] = HeadOrder.seed,
    dtype: Annotated[str, typer.Option("--dtype", help="That the target computes in.")] = HeadOrder.dtype,
    device: Annotated[str, typer.Option("--device", help="The target's.")] = HeadOrder.device,
) -> None:
    """Train a draft head for a target, on texts that the target writes itself."""
    order = HeadOrder(
        target=target,
        data=tuple(data),
        kind=_kind(kind),
        out=out,
        trainer=trainer,
        as_written=as_written,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        max_length=max_length,
        samples=samples,
        held_out=held_out,
        epochs=epochs,
        batch_tokens=batch_tokens,
        learning_rate=learning_rate,
        depth=depth,
        layers=_numbers("--layers", layers, "2,12,21"),
        num_layers=num_layers,
        windows=_numbers("--windows", windows, "1,0"),
        causal=causal,
        draft_vocab=draft_vocab,
        intermediate_size=intermediate_size,
        seed=seed,
        dtype=dtype,
        device=device,
    )
    _report(order, _trained(order))


def _trained(order: HeadOrder) -> Figures:
    """Train, or go on with it. Raises typer.Abort if it is stopped."""
    train = _training()
    try:
        with sigterm_as_ctrl_c():
            return train(order, lambda line: say(line, err=True), metering)
    except KeyboardInterrupt:
        say(f"stopped; the same command goes on with what is in {order.out}", err=True)
        raise typer.Abort from None


def _report(order: HeadOrder, figures: Figures) -> None:
    """Say what the head is worth, and how it is served."""
    shares = ", ".join(f"{share:.2f}" for share in figures.agreement)
    worth = f"{figures.accept_length:.2f} tokens a step with a chain of {order.ahead} on held-out texts"
    say(f"{order.out}: {worth}; right by step: {shares}")
    say(f"serve it: specsplit serve drafter --kind {order.kind} --model {order.out} --target {order.target}")


def _kind(name: str) -> DrafterKind:
    try:
        return DrafterKind(name)
    except ValueError as error:
        raise InvalidRequest("--kind", f"is {name!r}, expected {' or '.join(KINDS)}") from error


def _numbers(name: str, text: str | None, example: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(",")) if text else ()
    except ValueError as error:
        raise InvalidRequest(name, f"is {text!r}, expected numbers with commas between, as in {example}") from error


def _training() -> Callable[..., Any]:
    """The code that trains. Raises Unavailable if what it needs is not installed."""
    try:
        with ctrl_c_at_once(), importing():
            return import_module(_RUN).train_head
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"train-head cannot start: {error}; install the engine with: pip install 'specsplit[engine]'"
        ) from error
