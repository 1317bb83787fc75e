"""No class that behaves holds more than 12 attributes. Frozen values and settings may: they hold what there is to say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "specsplit",
    "drafter/specsplit_drafter",
    "verifier/specsplit_verifier",
    "coordinator/specsplit_coordinator",
)
MOST = 12


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if ROOT / "specsplit" / "v1" not in path.parents:
                found = ast.walk(ast.parse(path.read_text()))
                yield from ((path, node) for node in found if isinstance(node, ast.ClassDef))


def own_attributes(node: ast.ClassDef) -> set[str]:
    """What its body declares and its methods assign to."""
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and not is_class_variable(each)
    }
    assigned = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self"
    }
    return declared | assigned


def is_class_variable(declared: ast.AnnAssign) -> bool:
    named = isinstance(declared.target, ast.Name) and declared.target.id.isupper()
    return named or "ClassVar" in ast.unparse(declared.annotation)


def is_value(node: ast.ClassDef) -> bool:
    made = [ast.unparse(each) for each in node.decorator_list]
    return any("frozen=True" in each or each.startswith("lean(") for each in made)


def test_no_class_that_behaves_holds_more_than_12_attributes() -> None:
    found = list(classes())
    by_name = {node.name: node for _, node in found}

    def line(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """The class and those it inherits from, as far as they are ours."""
        yield node
        for base in node.bases:
            if (name := ast.unparse(base).split("[")[0]) in by_name and name != node.name:
                yield from line(by_name[name])

    too_large: dict[str, int] = {}
    for path, node in found:
        names = {each.name for each in line(node)} | {ast.unparse(base) for base in node.bases}
        count = len(set[str]().union(*map(own_attributes, line(node))))
        if count > MOST and not is_value(node) and not names & {"Settings", "TypedDict"}:
            too_large[f"{path.relative_to(ROOT)}: {node.name}"] = count
    assert too_large == {}, "give what belongs together in it a noun of its own"
