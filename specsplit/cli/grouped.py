"""A command whose help shows its options in groups."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class GroupedCommand(TyperCommand):
    """Options with a `rich_help_panel` stand under its name, in the order in which the names first come; the others come first."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group; as text of 80 columns at most, on a terminal as through a pipe."""
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)
