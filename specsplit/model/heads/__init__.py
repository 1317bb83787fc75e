"""Draft heads: small networks that read the target's hidden states and propose its next tokens."""

from __future__ import annotations

from specsplit.model.heads.block_config import BlockConfig, BlockSight
from specsplit.model.heads.block_head import BlockHead
from specsplit.model.heads.block_runner import BlockRows, BlockRunner
from specsplit.model.heads.eagle import EagleHead
from specsplit.model.heads.eagle3 import Eagle3Head
from specsplit.model.heads.eagle3_variant import Eagle3Variant
from specsplit.model.heads.head import Head
from specsplit.model.heads.load import load_block_head, load_head
from specsplit.model.heads.mtp import MtpHead
from specsplit.model.heads.projection import projected, projection_of
from specsplit.model.heads.runner import HeadRunner
from specsplit.model.heads.save import save_head
from specsplit.model.heads.shape import HeadShape
from specsplit.model.heads.target import TargetEmbeddings

__all__ = [
    "BlockConfig",
    "BlockHead",
    "BlockRows",
    "BlockRunner",
    "BlockSight",
    "Eagle3Head",
    "Eagle3Variant",
    "EagleHead",
    "Head",
    "HeadRunner",
    "HeadShape",
    "MtpHead",
    "TargetEmbeddings",
    "load_block_head",
    "load_head",
    "projected",
    "projection_of",
    "save_head",
]
