"""Every command under one name."""

from __future__ import annotations

import typer

from specsplit.cli.demo import demo
from specsplit.cli.failures import OneLineGroup
from specsplit.cli.generate import generate
from specsplit.cli.health import health
from specsplit.cli.plan import plan
from specsplit.cli.serve import serve_app
from specsplit.cli.status import status
from specsplit.cli.tokens import tokens
from specsplit.cli.trace import trace
from specsplit.cli.up import up

app = typer.Typer(
    name="specsplit",
    cls=OneLineGroup,
    help="Speculative decoding of large language models, split into services.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(up)
app.add_typer(serve_app, name="serve")
app.command()(generate)
app.command()(status)
app.command()(plan)
app.command()(trace)
app.command()(health)
app.command()(tokens)
