"""A member takes the weights of one folder at a time, and of none that its settings do not allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from specsplit.errors import Exhausted, NotFound, Unsupported
from specsplit.rpc import Revisions


@pytest.fixture
def revisions(tmp_path: Path) -> Revisions:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    return Revisions("drafter", tmp_path, {"dp_size": False})


def test_a_second_folder_is_refused_until_the_first_is_taken_or_has_failed(
    revisions: Revisions, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="it cannot be read"), revisions.taking("one") as folder:  # noqa: PT012
        assert folder == tmp_path / "one"
        with (
            pytest.raises(Exhausted, match="weights are being updated already, to one; try again"),
            revisions.taking("other"),
        ):
            raise AssertionError("it is not taken")
        raise RuntimeError("it cannot be read")
    with revisions.taking("other") as folder:
        assert folder == tmp_path / "other"


def test_a_folder_that_is_not_there_is_not_found(revisions: Revisions) -> None:
    with pytest.raises(NotFound, match="no folder third in weights_dir of this drafter"), revisions.taking("third"):
        raise AssertionError("it is not taken")


def test_the_first_setting_in_use_that_other_weights_do_not_go_with_is_named(tmp_path: Path) -> None:
    excluded = {"dp_size": False, "tp_size": True, "random_weights": True}
    for weights_dir, said in ((None, "weights_dir of the verifier is not set"), (tmp_path, "does not go with tp_size")):
        with pytest.raises(Unsupported, match=said), Revisions("verifier", weights_dir, excluded).taking("one"):
            raise AssertionError("it is not taken")
