"""The plan in force as a table: a row for each setting, a column for each verifier or for those that agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from specsplit.cli.columns import named
from specsplit.cli.screen import joined, text
from specsplit.errors import printable
from specsplit.membership import Member, PlanInForce
from specsplit.values import ModelInfo

ABOVE = (
    "What a request fixes for itself stands above the operator, the operator above the controller, "
    "and the controller above the settings."
)
_AROUND = 3


@dataclass(frozen=True, slots=True)
class Part:
    """One number of a plan, or who decides about it."""

    value: object
    source: str
    """"operator", "controller" or "settings"; empty if there is no value."""

    @property
    def shown(self) -> str:
        match self.value:
            case None:
                return "-"
            case bool():
                return "yes" if self.value else "no"
            case _:
                return str(self.value)

    def __str__(self) -> str:
        return f"{self.shown} {self.source}".rstrip()


Parts = Mapping[str, Part]


def parts(member: Member, in_force: PlanInForce) -> Parts:
    """Every part of a verifier's plan by name, as the verifier said it last: it may be a heartbeat behind the operator.

    Empty for a member that has said nothing of its plan.
    """
    report, plan = member.speculation, member.plan
    if report is None or plan is None:
        return {}
    wanted = in_force.control.adaptive
    bound = report.max_draft_tokens
    by_operator = wanted is not None and wanted.value == report.adaptive
    source = "" if bound is None else "operator" if bound == in_force.control.max_draft_tokens else "settings"
    found = {
        "controller": Part(report.adaptive, "operator" if by_operator else "settings"),
        "max_draft_tokens": Part(bound, source),
    }
    for name, value in vars(plan).items():
        own = "settings" if value == getattr(report.launched, name) else "controller"
        found[name] = Part(value, "operator" if value == getattr(in_force.changes, name) else own)
    return found


def as_objects(members: Sequence[Member], in_force: PlanInForce) -> list[dict[str, object]]:
    """Make what --json prints of the verifiers, one object for each."""
    said = [(member.member_id, parts(member, in_force)) for member in verifiers(members)]
    return [
        {
            "member_id": name,
            "plan": {key: {"value": part.value, "source": part.source or None} for key, part in each.items()},
        }
        for name, each in said
    ]


def verifiers(members: Sequence[Member]) -> list[Member]:
    """The verifiers among these, by member id."""
    found = [member for member in members if isinstance(member.role, ModelInfo)]
    return sorted(found, key=lambda member: member.member_id)


@dataclass(frozen=True)
class InForce:
    """The plan that every verifier has reported, and where each part of it comes from: as many tables as the screen is too narrow for."""

    in_force: PlanInForce
    members: tuple[Member, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich with the width that there is."""
        silent: list[str] = []
        groups: dict[tuple[tuple[str, Part], ...], list[str]] = {}
        for member in verifiers(self.members):
            found = parts(member, self.in_force)
            (groups.setdefault(tuple(found.items()), []) if found else silent).append(member.member_id)
        columns = [_Column(_heading(names, len(groups)), dict(found)) for found, names in groups.items()]
        for some in _split(columns, options.max_width):
            yield _table(some)
        if columns:
            yield ABOVE
        if silent:
            yield f"not heard of yet: {', '.join(silent)}"


@dataclass(frozen=True)
class _Column:
    heading: str
    parts: Parts

    @property
    def width(self) -> int:
        return max(cell_len(printable(each)) for each in (self.heading, *map(str, self.parts.values())))


def _heading(names: Sequence[str], groups: int) -> str:
    if groups == 1 and len(names) > 1:
        return f"all {len(names)} verifiers"
    return named(names)


def _split(columns: Sequence[_Column], width: int) -> Iterator[list[_Column]]:
    """Columns that stand side by side in one table, beside the names of the settings: those that fit, or one that does not."""
    if not columns:
        return
    names = max(map(len, columns[0].parts)) + _AROUND + 1
    some, taken = list[_Column](), names
    for column in columns:
        if some and taken + column.width + _AROUND > width:
            yield some
            some, taken = [], names
        some.append(column)
        taken += column.width + _AROUND
    yield some


def _table(columns: Sequence[_Column]) -> Table:
    drawn = Table()
    drawn.add_column("setting")
    for column in columns:
        drawn.add_column(column.heading, overflow="fold")
    for name in columns[0].parts:
        shown = [column.parts[name] for column in columns]
        drawn.add_row(name, *(joined(each.shown, text(f" {each.source}".rstrip(), "dim")) for each in shown))
    return drawn
