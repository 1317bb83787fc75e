"""How a command fails: one clear line on stderr, exit 2 if the caller asked for something wrong, else 1."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from specsplit.cli.say import say
from specsplit.cli.streams import LostOutput, guard
from specsplit.errors import (
    InvalidRequest,
    PermissionDenied,
    SpecsplitError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

# typer carries its own click or uses the one installed, depending on its version; either way these are the two classes.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

_NOBODY_THERE = "is a coordinator running there? start one with specsplit up"
_NOT_ALLOWED = (
    "show the token or certificate of a caller who may (--token-file, --tls-cert); where there are two ports (--address), "
    "clients' commands go to that of clients, and operators' to that of members"
)


class OneLineGroup(TyperGroup):
    """A group of commands whose failures are one line each."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run; in standalone mode leave with an exit status. Without arguments it is --help."""
        guard()
        try:
            return self._run(args, prog_name, complete_var, standalone_mode, windows_expand_args, **extra)
        except LostOutput as error:
            if error.is_quiet:
                sys.exit(error.status)
            fail(str(error), error.status)

    def _run(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        complete_var: str | None,
        standalone_mode: bool,
        windows_expand_args: bool,
        **extra: Any,
    ) -> Any:
        args = (sys.argv[1:] if args is None else list(args)) or ["--help"]
        try:
            status = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except SpecsplitError as error:
            leave(error)
        except typer.Abort:
            sys.exit(130)
        except _UsageError as error:
            fail(_usage(error), 2)
        finally:
            sys.stdout.flush()
        if standalone_mode:
            sys.exit(status if isinstance(status, int) else 0)
        return status


def leave(error: SpecsplitError) -> NoReturn:
    """Say what went wrong and exit: 2 for a wrong or unsupported value, else 1."""
    fail(sentence(error), 2 if isinstance(error, InvalidRequest | Unsupported) else 1)


def sentence(error: SpecsplitError) -> str:
    """Say what went wrong, and what to do about it where a user of the command line can."""
    said = error.message if isinstance(error, Unavailable) else str(error)
    if isinstance(error, Unavailable) and "connection refused" in said.lower():
        return f"{said}; {_NOBODY_THERE}"
    if isinstance(error, Unauthenticated | PermissionDenied):
        return f"{said}; {_NOT_ALLOWED}"
    return said


def fail(problem: str, status: int) -> NoReturn:
    """Print one line on stderr, then exit."""
    complain(problem)
    sys.exit(status)


def complain(problem: str) -> None:
    """Print one line on stderr."""
    say(f"specsplit: {' '.join(problem.split())}", err=True)


def _usage(error: Exception) -> str:
    """Make a sentence of what click says, with the command that would help."""
    context: Any = vars(error).get("ctx")
    message = str(error) if not hasattr(error, "format_message") else error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
    command = context.command_path if context is not None else "specsplit"
    return f"{message.rstrip('.')}; see {command} --help"
