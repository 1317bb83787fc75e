"""A target that is published with MTP layers, in whole processes: a drafter takes them out of the target's own folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from specsplit.cli.drafters import choose_drafters
from specsplit.cli.local import LocalCluster
from specsplit.values import DrafterKind
from tests.support.mtp_target import KINDS, mtp_target
from tests.system.conftest import PACED, SERIAL, letters

LAYERS = {name: kind.mtp_layers for name, kind in KINDS.items()}


@pytest.mark.parametrize(("name", "layers"), [*LAYERS.items(), ("glm4_moe", 1)])
def test_layers_of_the_targets_folder_draft_what_it_says(tmp_path: Path, name: str, layers: int) -> None:
    """With what `specsplit up` starts for that folder where nothing is said of drafters."""
    target = mtp_target(tmp_path, name, layers)
    chosen = choose_drafters((), (), target)
    kind = DrafterKind.MULTI_LAYER_EAGLE if layers > 1 else DrafterKind.EAGLE
    assert (chosen.kinds, dict(chosen.models)) == ((kind,), {kind: target})
    with (
        LocalCluster(target, chosen.models, drafters=chosen.kinds, verifier=PACED) as started,
        started.client() as client,
    ):
        drafted = client.generate("abc", max_tokens=40, drafter=kind.value, plan=SERIAL)
        alone = client.generate("abc", max_tokens=40, drafter="none")
    assert drafted.text == alone.text == letters("c", 40)
    assert drafted.speculation.accept_length > max(layers, 2)
