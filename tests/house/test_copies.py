"""What a step copies to the device can be counted, since it goes through `specsplit/model/tensors/transfer.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("specsplit/model", "specsplit/sampling", "drafter/specsplit_drafter", "verifier/specsplit_verifier")
OTHERS = {
    "specsplit/model/tensors/transfer.py": "the place for it",
    "specsplit/model/lm/load.py": "at load",
    "specsplit/model/heads/load.py": "at load",
    "specsplit/model/heads/target.py": "at load",
    "specsplit/model/lm/probe.py": "at load",
    "verifier/specsplit_verifier/target/extraction.py": "a drafter's projection, once",
    "specsplit/model/tensors/feature_codec.py": "features that came to a drafter, in no step",
    "specsplit/sampling/counts.py": "empty tensors, once",
}
"""Modules that copy in another way, and when they do."""


def copies(node: ast.AST) -> bool:
    """torch.tensor(..., device=...), or tensor.to(...) with a device among what is said."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in ("tensor", "as_tensor"):
        return any(keyword.arg == "device" for keyword in node.keywords)
    said = " ".join(map(ast.unparse, (*node.args, *(keyword.value for keyword in node.keywords))))
    return node.func.attr == "cuda" or (node.func.attr == "to" and "device" in said)


def found() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if any(map(copies, ast.walk(ast.parse(path.read_text())))):
                yield str(path.relative_to(ROOT))


def test_nothing_is_copied_to_the_device_in_a_step_but_by_what_is_counted() -> None:
    assert set(found()) - OTHERS.keys() == set(), "use on_device of specsplit/model/tensors/transfer.py"
    assert OTHERS.keys() - set(found()) == set(), "gone"
