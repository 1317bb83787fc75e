"""docs/targets.md: printed from what the walk has found, and read again for who stands where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import transformers

from scripts.printed import ROOT
from scripts.targets.walk import TOLERANCE, Finding, Outcome

PAGE: Final = ROOT / "docs" / "targets.md"

_INTRODUCTION: Final = """\
# Targets

<!-- Printed by `python -m scripts.targets` (`make targets`); edit scripts/targets/settings.py, not this page. -->

Every causal language model of transformers {version}, by the name that its `config.json` has as `model_type`: of {total} names
**{served} are served exactly, {refused} are refused** at load with a sentence that says why, and {unbuilt} cannot be built small.

Each was built tiny, with random weights, loaded as the services load it, and compared with its own forward in transformers along every
path: a prompt in chunks, a tree of {nodes} nodes, a chain, a session that begins with cached pages of another one, and a step behind
accepted nodes. *Served exactly* means that no logit is off by more than {tolerance:.0e} of the largest, in float32 on a CPU.
A model with weights that people use is tried in the same way, with a few texts, whenever it is loaded: one that is on this page and still
gives other logits is refused, and one that is not on it is served if it passes.

`make targets` prints this page again (a minute); CI does so too, and fails if a name has moved from one list to another.
How a kind is added that transformers has got since: [CONTRIBUTING.md](../CONTRIBUTING.md#a-kind-of-target).
"""
_TITLES: Final[Mapping[Outcome, tuple[str, str, tuple[str, ...]]]] = {
    Outcome.SERVED: (
        "Served exactly",
        "What its layers see of a text (in the tiny config; a real one may have others), and how far a logit was off at worst.",
        ("name", "layers", "off by"),
    ),
    Outcome.REFUSED: (
        "Refused",
        "What the verifier says. Choose a target of a kind above in its place; a fine-tuned model has the `model_type` of its base.",
        ("name", "why"),
    ),
    Outcome.UNBUILT: (
        "Not built small",
        "What transformers says where it is to make a tiny model of it. Such a model may be served nevertheless: loading it tells.",
        ("name", "why"),
    ),
    Outcome.WRONG: ("Wrong", "Bugs of specsplit.", ("name", "what happens")),
}
_LONGEST: Final = 240
"""Characters of a reason that are printed."""


def page(findings: Sequence[Finding], nodes: int) -> str:
    """The page for all names."""
    counts = {outcome.value: sum(each.outcome is outcome for each in findings) for outcome in Outcome}
    text = _INTRODUCTION.format(
        version=transformers.__version__, total=len(findings), nodes=nodes, tolerance=TOLERANCE, **counts
    )
    return "\n".join([text, *_sections(findings)]).rstrip("\n") + "\n"


def listed(text: str) -> dict[str, str]:
    """By name, the title of the section that it stands in on a page."""
    found: dict[str, str] = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ")
        elif row := re.match(r"\| `([^`]+)` \|", line):
            found[row[1]] = title
    return found


def moved(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is different between two pages, a line for each name."""
    nowhere = "not listed"
    return [
        f"{name}: {before.get(name, nowhere)} in docs/targets.md, now {now.get(name, nowhere)}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def _sections(findings: Sequence[Finding]) -> Iterator[str]:
    for outcome, (title, words, columns) in _TITLES.items():
        rows = [each for each in findings if each.outcome is outcome]
        if not rows:
            continue
        yield from (f"## {title}", "", words, "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|")
        for each in rows:
            error = f" {each.error:.0e} |" if outcome is Outcome.SERVED else ""
            yield f"| `{each.name}` | {_shown(each.detail)} |{error}"
        yield ""


def _shown(reason: str) -> str:
    shown = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST].rsplit(' ', 1)[0]} ..."
    return shown.replace("|", "\\|").replace("<", "&lt;")
