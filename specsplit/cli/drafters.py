"""Which drafters a command line asks for: their kinds, and the folder of each kind's model or head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specsplit.cli.folders import DRAFTS, drafts_of
from specsplit.errors import InvalidRequest
from specsplit.values import DrafterKind

NONE = "none"
"""The wish for no drafter."""
KINDS = (*DRAFTS, DrafterKind.NGRAM)
"""Every kind of drafter, the best first."""
CHOICES = f"{', '.join(KINDS)} or {NONE}"
"""What may be wished for, in words."""


@dataclass(frozen=True)
class Drafters:
    """The drafters to start."""

    kinds: tuple[DrafterKind, ...]
    """The kinds that were asked for; a kind may stand there more than once."""
    models: Mapping[DrafterKind, Path]
    """The folder of every kind above that needs one."""
    lookup: bool = False
    """Nobody said which, and there is no head or draft model: verifiers draft by lookup themselves, without a process."""


def choose_drafters(kinds: Sequence[str], models: Sequence[str], target: Path) -> Drafters:
    """What `--drafter KIND` and `--draft-model [KIND=]FOLDER` ask for; either may be given any number of times.

    Without kinds, they are those that folders are given for (standalone for a folder without a kind); without either, the best kind
    that has a folder beside the target's, or MTP layers inside of it, or else lookup in the verifiers. A folder that is not given is
    looked for there too.
    Raises InvalidRequest, naming the option, for a kind that does not exist, and for a folder that is missing, in doubt or not needed.
    """
    bare, named = _split(models)
    found = drafts_of(target)
    if kinds:
        wanted = _wished(kinds)
    elif models:
        wanted = (*named, *[DrafterKind.STANDALONE for _ in bare])
    else:
        wanted = tuple(found)[:1]
    needy = tuple(dict.fromkeys(kind for kind in wanted if kind.needs_model))
    given = {**named, **_assigned(bare, [kind for kind in needy if kind not in named])}
    _refuse_unneeded(given, needy)
    folders = {kind: _folder(kind, {**found, **given}, target) for kind in needy}
    return Drafters(wanted, folders, lookup=not (wanted or kinds))


def check_folder(option: str, folder: Path) -> Path:
    """Return the folder. Raises InvalidRequest, naming the option, if there is none."""
    if not folder.is_dir():
        raise InvalidRequest(option, f"there is no folder {folder}")
    return folder


def _wished(kinds: Sequence[str]) -> tuple[DrafterKind, ...]:
    for kind in kinds:
        if kind not in (*KINDS, NONE):
            raise InvalidRequest("--drafter", f"is {kind!r}, expected {CHOICES}")
    if NONE not in kinds:
        return tuple(map(DrafterKind, kinds))
    if len(kinds) > 1:
        raise InvalidRequest("--drafter", f"{NONE} leaves no place for another; give it alone or leave it out")
    return ()


def _split(models: Sequence[str]) -> tuple[list[Path], dict[DrafterKind, Path]]:
    """Split what was given into folders without a kind and those with one."""
    bare: list[Path] = []
    named: dict[DrafterKind, Path] = {}
    for model in models:
        kind, equals, folder = model.partition("=")
        if not equals or kind not in KINDS:
            bare.append(Path(model))
        elif DrafterKind(kind) in named:
            raise InvalidRequest("--draft-model", f"is given twice for {kind} drafters")
        else:
            named[DrafterKind(kind)] = Path(folder)
    return bare, named


def _assigned(bare: Sequence[Path], left: Sequence[DrafterKind]) -> dict[DrafterKind, Path]:
    """Give a folder without a kind to the one kind that is left without a folder."""
    if not bare:
        return {}
    if not left:
        raise InvalidRequest("--draft-model", f"is {bare[0]}, which no drafter that is asked for needs; leave it out")
    if len(bare) > 1 or len(left) > 1:
        raise InvalidRequest("--draft-model", f"must say which kind it is for, as KIND={bare[0]}")
    return {left[0]: bare[0]}


def _refuse_unneeded(given: Iterable[DrafterKind], needy: Sequence[DrafterKind]) -> None:
    for kind in given:
        if kind not in needy:
            raise InvalidRequest(
                "--draft-model", f"is given for {kind} drafters, of which none is asked for or needs one"
            )


def _folder(kind: DrafterKind, folders: Mapping[DrafterKind, Path], target: Path) -> Path:
    if kind not in folders:
        beside = target.parent / DRAFTS[kind]
        raise InvalidRequest(
            "--draft-model",
            f"is required for {kind} drafters: there is no model in {beside}; say --draft-model {kind}=FOLDER",
        )
    return check_folder("--draft-model", folders[kind])
