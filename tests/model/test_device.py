"""A device that torch cannot use is refused with a sentence, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specsplit.clock import SystemClock
from specsplit.errors import InvalidRequest
from specsplit.model.tensors.device import check_device
from specsplit.settings import DrafterSettings, VerifierSettings
from specsplit_drafter.edge.service import load_proposer
from specsplit_verifier.edge.service import load_target

GPUS = torch.cuda.device_count()
UNUSABLE = ["foo", "", "cuda:x", "meta", f"cuda:{GPUS}"]


@pytest.mark.parametrize("name", ["cpu", *(f"cuda:{i}" for i in range(GPUS))])
def test_a_device_that_is_there_is_taken(name: str) -> None:
    check_device(name)


@pytest.mark.parametrize("name", UNUSABLE)
@pytest.mark.parametrize(
    "load",
    [
        lambda name: load_target(VerifierSettings(model=Path("none"), device=name), SystemClock()),
        lambda name: load_proposer(DrafterSettings(model=Path("none"), device=name), SystemClock()),
    ],
    ids=["verifier", "drafter"],
)
def test_a_device_that_is_not_there_is_refused_by_name_with_those_that_are(
    load: Callable[[str], object], name: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load(name)
    assert caught.value.field == "device"
    assert repr(name) in caught.value.problem and "expected cpu" in caught.value.problem
