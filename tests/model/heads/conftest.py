"""Every published layout, written once in every form, with its target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from specsplit.model.heads import Head, load_head
from tests.model.heads.published import EVERYBODY, Published, write, write_target


@dataclass(frozen=True)
class Loaded:
    """A head, and what it was loaded from."""

    published: Published
    tensors: dict[str, Tensor]
    target: dict[str, Tensor]
    head: Head


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory, target: Path) -> Callable[..., Loaded]:
    """Writes a layout of EVERYBODY in a form and loads it."""

    def loaded(name: str, form: str = "single", dtype: str = "float32") -> Loaded:
        published = EVERYBODY[name]
        tensors = published.tensors()
        folder = write(tmp_path_factory.mktemp("head"), published.facts, tensors, form)
        ends = folder if published.inside_target else target
        head = load_head(folder, ends, published.kind, dtype=dtype)
        return Loaded(
            published, tensors, tensors if published.inside_target else load_file(target / "model.safetensors"), head
        )

    return loaded
