"""transformers builds a model's modules while nobody steps; see `specsplit.model_thread.BuildingSite`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

from specsplit.model_thread import SITE

_CONTEXTS = "get_init_context"
"""PreTrainedModel's method that says in which contexts modules are built."""


@contextmanager
def building_alone() -> Iterator[None]:
    """Have what transformers reads in here be built while nobody steps; weights are read while others do. One thread at a time."""
    own = vars(PreTrainedModel)[_CONTEXTS]

    def contexts(cls: Any, *arguments: Any, **options: Any) -> list[Any]:
        return [SITE.building(), *own.__func__(cls, *arguments, **options)]

    setattr(PreTrainedModel, _CONTEXTS, classmethod(contexts))
    try:
        yield
    finally:
        setattr(PreTrainedModel, _CONTEXTS, own)
