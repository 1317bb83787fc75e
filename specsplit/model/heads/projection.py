"""EAGLE-3's fusion as a matrix that the verifier can apply before it sends features: a third of the bytes per token.

By the digest both sides know that they mean the same matrix. It is computed over the numbers as they are stored, so it does not depend on
the dtype in which either side computes.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from specsplit.errors import LoadError
from specsplit.features import FeatureNeed
from specsplit.model.attention.support import check_folder
from specsplit.model.heads.checkpoint import Checkpoint
from specsplit.model.heads.layouts import Family
from specsplit.model.heads.load import family_of
from specsplit.text.json_file import read_json

_WEIGHT = "fc.weight"
_NORMS = ("input_norm.", "fc_norm.")


def projection_of(folder: Path) -> tuple[Tensor, str]:
    """The projection of the EAGLE-3 head in `folder`: float32 [projected_size, feature width], and its hex SHA-256.

    Reads that tensor alone. A bias of fc is no part of it: the head adds that. Raises LoadError if the folder holds no such head.
    """
    check_folder(folder)
    checkpoint = Checkpoint(folder)
    family = family_of(folder, read_json(folder / "config.json"), checkpoint)
    if family is not Family.EAGLE3 or _WEIGHT not in checkpoint.names:
        raise LoadError(
            f"model folder {folder} holds {family.value}, which has no projection; expected EAGLE-3 with {_WEIGHT}"
        )
    if any(name.startswith(_NORMS) for name in checkpoint.names):
        raise LoadError(
            f"the head in {folder} norms features before {_WEIGHT}, so it has no projection that the verifier could apply: leave "
            "feature_projection off"
        )
    weight = checkpoint.read([_WEIGHT])[_WEIGHT].to(torch.float32).contiguous()
    digest = hashlib.sha256(f"{list(weight.shape)}".encode() + weight.numpy().tobytes()).hexdigest()
    return weight, digest


def projected(need: FeatureNeed, folder: Path) -> FeatureNeed:
    """Make the need of the EAGLE-3 head in `folder` where the verifier applies its projection. Raises LoadError."""
    weight, digest = projection_of(folder)
    return replace(need, projection=digest, projected_size=len(weight))
