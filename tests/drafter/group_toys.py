"""Tiny draft models of which ranks hold a part each."""

from __future__ import annotations

from collections.abc import Callable

from transformers import LlamaForCausalLM

from specsplit.model import CausalLM
from specsplit.model.attention.interface import NAME
from specsplit.model.layers.sharded import TensorMesh
from specsplit.model.layers.shards import shard_mlps
from specsplit.model.pages.room import MemoryShare
from specsplit.values import ModelInfo
from specsplit_drafter.drafts.draft_model import DraftModel
from specsplit_drafter.kinds.heads import HeadModel
from specsplit_drafter.kinds.standalone import StandaloneModel
from tests.drafter.head_toys import VOCABULARY, head_of
from tests.drafter.toys import plain_model, tiny_config


def model_of(name: str, mesh: TensorMesh | None = None, slots: int | MemoryShare = 1024) -> Callable[[], DraftModel]:
    """Makes the rank's part of a model with random weights, always the same; what is made of it takes all ranks."""
    if name == "standalone":
        model = LlamaForCausalLM(tiny_config())
        model.load_state_dict(plain_model(tiny_config()).state_dict())
        model.config._attn_implementation = NAME  # pyright: ignore[reportPrivateUsage]
        blocks = None if mesh is None else shard_mlps(model, mesh)
        info = ModelInfo("tiny", VOCABULARY, 128)
        return lambda: StandaloneModel(CausalLM(model, info, num_pages=slots, page_size=1, blocks=blocks))
    head = head_of(name)
    _ = head.geometry  # before it takes all ranks: a property is cached by one thread at a time
    if mesh is not None:
        head.shard(mesh)
    return lambda: HeadModel(head, slots)
