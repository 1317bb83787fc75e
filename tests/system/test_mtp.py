"""A target that is published with MTP layers, in whole processes: a drafter takes them out of the target's own folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specsplit.cli.drafters import choose_drafters
from specsplit.cli.local import LocalCluster
from specsplit.values import DrafterKind
from tests.support.mtp_target import MTP_LAYERS, mtp_target
from tests.system.conftest import PACED, SERIAL, letters

KIND = DrafterKind.MULTI_LAYER_EAGLE


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mtp_target(tmp_path_factory.mktemp("mtp"))


@pytest.fixture(scope="module")
def cluster(target: Path) -> Iterator[LocalCluster]:
    """What `specsplit up` starts for that folder where nothing is said of drafters."""
    chosen = choose_drafters((), (), target)
    assert (chosen.kinds, dict(chosen.models)) == ((KIND,), {KIND: target})
    with LocalCluster(target, chosen.models, drafters=chosen.kinds, verifier=PACED) as started:
        yield started


def test_layers_of_the_targets_folder_draft_what_it_says(cluster: LocalCluster) -> None:
    with cluster.client() as client:
        drafted = client.generate("abc", max_tokens=40, drafter=KIND.value, plan=SERIAL)
        alone = client.generate("abc", max_tokens=40, drafter="none")
    assert drafted.text == alone.text == letters("c", 40)
    assert drafted.speculation.accept_length > MTP_LAYERS
