"""Where models lie: one folder holds the target and, beside it, what drafters of each kind need. models/pocket is such a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from specsplit.errors import InvalidRequest
from specsplit.mtp import num_mtp_layers
from specsplit.values import DrafterKind

TARGET = "target"
"""The target's folder."""
DRAFTS: Mapping[DrafterKind, str] = MappingProxyType(
    {
        DrafterKind.EAGLE3: "eagle3",
        DrafterKind.DFLASH: "dflash",
        DrafterKind.DSPARK: "dspark",
        DrafterKind.MULTI_LAYER_EAGLE: "multi_layer_eagle",
        DrafterKind.EAGLE: "eagle",
        DrafterKind.STANDALONE: "draft",
    }
)
"""The folder of each kind that needs one, the best kind first."""

POCKET_LAYERS = 96
"""The pocket target is inflated to so many where nobody says otherwise: as it is, its step is so cheap that no draft pays."""
_POCKET = Path("models") / "pocket"


def inflation(layers: int) -> str:
    """What is said to people of a target that is inflated to so many layers."""
    return (
        f"The target gets {layers} layers, most of which change nothing, so that the cost of its step stands to the "
        "drafter's as a large model's would."
    )


def is_model(folder: Path) -> bool:
    """True if `folder` looks like a model in the Hugging Face layout."""
    return (folder / "config.json").is_file()


def drafts_beside(target: Path) -> dict[DrafterKind, Path]:
    """The folder of every kind of drafter that has one beside the target's, the best kind first."""
    folders = {kind: target.parent / name for kind, name in DRAFTS.items()}
    return {kind: folder for kind, folder in folders.items() if is_model(folder)}


def drafts_of(target: Path) -> dict[DrafterKind, Path]:
    """`drafts_beside`, and the target's own folder for the kinds that its MTP layers run as, the best kind first.

    One layer drafts deeper on states of its own, as an eagle head, than the one level of multi_layer_eagle, which is the last choice then.
    Raises LoadError if the target's files cannot be read.
    """
    found = drafts_beside(target)
    layers = num_mtp_layers(target) if is_model(target) else 0
    inside = [DrafterKind.MULTI_LAYER_EAGLE] if layers > 1 else []
    if layers == 1:
        inside = [DrafterKind.EAGLE, DrafterKind.MULTI_LAYER_EAGLE]
    best = [kind for kind in DRAFTS if kind in found or kind in inside[:1]]
    return {kind: found.get(kind, target) for kind in dict.fromkeys((*best, *inside))}


def pocket(option: str) -> Path:
    """The pocket models' folder: that of the working directory, or else that of the checkout this code runs from.

    Raises InvalidRequest, naming the option that says another folder, if there is neither.
    """
    candidates = (_POCKET, Path(__file__).resolve().parents[2] / _POCKET)
    for folder in candidates:
        if is_model(folder / TARGET):
            return folder
    looked = " or ".join(str(folder) for folder in candidates)
    raise InvalidRequest(option, f"there is no model in {looked}; run it where the repository is, or name the folder")
