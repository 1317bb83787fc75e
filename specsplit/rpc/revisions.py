"""Other weights for the model of a member that goes on: an operator names a folder of them in its weights_dir."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from specsplit.errors import Exhausted, NotFound, Unsupported
from specsplit.observe import fields
from specsplit.rpc.callers import caller

_log = logging.getLogger(__name__)


class Revisions:
    """The folders of weights that a member may take, one at a time."""

    def __init__(self, member: str, weights_dir: Path | None, excluded: Mapping[str, bool]) -> None:
        """`member`: verifier or drafter. `excluded`: settings that other weights do not go with, and whether each of them is in use."""
        self._member: Final = member
        self._weights_dir: Final = weights_dir
        self._excluded: Final = [name for name, in_use in excluded.items() if in_use]
        self._under_way = ""

    @contextmanager
    def taking(self, name: str) -> Generator[Path]:
        """Take the weights of this folder in here.

        Raises Unsupported where the settings do not allow that, NotFound if there is no such folder, Exhausted while others are taken.
        """
        folder = self._folder(name)
        if self._under_way:
            raise Exhausted(f"weights are being updated already, to {self._under_way}; try again when that is over")
        self._under_way = name
        _log.info("other weights are read", extra=fields(folder=name, by=caller().name))
        try:
            yield folder
        finally:
            self._under_way = ""

    def _folder(self, name: str) -> Path:
        if self._weights_dir is None:
            raise Unsupported("UpdateWeights", f"is not supported here: weights_dir of the {self._member} is not set")
        if self._excluded:
            problem = f"does not go with {self._excluded[0]}; start the {self._member} anew with the other weights"
            raise Unsupported("UpdateWeights", problem)
        folder = self._weights_dir / name
        if not folder.is_dir():
            raise NotFound(f"there is no folder {name} in weights_dir of this {self._member}")
        return folder
