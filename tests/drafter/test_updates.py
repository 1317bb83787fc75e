"""Drafters take other weights of their model in all of its tensors, and refuse what cannot be taken."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specsplit.cli.folders import drafts_beside
from specsplit.clock import SystemClock
from specsplit.engine import Updated, UpdateWeights
from specsplit.errors import Exhausted, Incompatible, SpecsplitError, Unsupported
from specsplit.model.heads.head_module import HeadModule
from specsplit.model.heads.target import TargetEmbeddings
from specsplit.settings import DrafterSettings
from specsplit.values import DrafterKind, Vocabulary
from specsplit_drafter.drafts.draft_weights import DraftWeights
from specsplit_drafter.drafts.record import Cycle
from specsplit_drafter.edge.service import load_proposer, load_table
from specsplit_drafter.edge.updates import Updates
from specsplit_drafter.engine.engine import Engine
from specsplit_drafter.engine.session_table import Outgoing
from tests.model.test_quantised import FORMS, quantised

POCKET = Path("models/pocket/target")
MODELS = drafts_beside(POCKET)


def weights_in(kind: DrafterKind, folder: Path, **settings: Any) -> DraftWeights:
    target = POCKET if kind.is_head else None
    resolved = DrafterSettings(kind=kind, model=folder, target=target, kv_tokens=2048, **settings)
    weights = load_proposer(resolved, SystemClock()).weights
    assert weights is not None
    return weights


def doubled(source: Path, folder: Path, named: Callable[[str], str] = str) -> Path:
    """A copy with other numbers in every tensor of weights, which are called what `named` makes of their names."""
    shutil.copytree(source, folder)
    for path in folder.glob("*.safetensors"):
        changed = {named(n): t * 2 if t.is_floating_point() else t for n, t in load_file(path).items()}
        save_file(changed, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("cpu_layers", ["auto", "off"])
def test_all_of_a_draft_model_takes_other_weights(kind: DrafterKind, cpu_layers: str, tmp_path: Path) -> None:
    served = weights_in(kind, MODELS[kind], cpu_layers=cpu_layers)
    other = weights_in(kind, doubled(MODELS[kind], tmp_path / "other"), cpu_layers=cpu_layers)
    assert not _same(served, other)
    served.require_fit(other)
    served.copy_from(other)
    assert _same(served, other)


def _same(one: DraftWeights, other: DraftWeights) -> bool:
    def plain(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to_dense() if tensor.is_mkldnn else tensor

    return all(torch.equal(plain(tensor), plain(other.tensors[name])) for name, tensor in one.tensors.items())


def test_the_ids_of_a_smaller_vocabulary_are_weights_too() -> None:
    def head(*ids: int) -> HeadModule:
        target = TargetEmbeddings(
            torch.zeros(8, 4), None, vocabulary=Vocabulary(8, "x"), hidden_size=4, num_layers=1, max_context=16
        )
        made = HeadModule(target)
        made.set_draft_tokens(torch.tensor(ids))
        return made

    served, info = head(0, 1, 2), weights_in(DrafterKind.STANDALONE, MODELS[DrafterKind.STANDALONE]).info
    weights = DraftWeights(info, served.held_tensors())
    weights.copy_from(DraftWeights(info, head(1, 4, 6).held_tensors()))
    assert served.in_target(torch.zeros(3)).isfinite().nonzero().flatten().tolist() == [1, 4, 6]
    with pytest.raises(Incompatible, match=r"target_ids is \[2\] int64 on cpu, expected \[3\]|d2t is"):
        weights.require_fit(DraftWeights(info, head(1, 4).held_tensors()))


def as_speculators_has_it(name: str) -> str:
    """The names that speculators and ModelOpt give to an EAGLE-3 head's tensors, where SpecForge says midlayer."""
    return name.replace("midlayer.", "layers.0.")


def test_a_revision_whose_tensors_have_other_published_names_is_the_same_head(tmp_path: Path) -> None:
    source = MODELS[DrafterKind.EAGLE3]
    served = weights_in(DrafterKind.EAGLE3, source)
    other = weights_in(DrafterKind.EAGLE3, doubled(source, tmp_path / "other", as_speculators_has_it))
    served.require_fit(other)
    served.copy_from(other)
    assert _same(served, other)


def test_what_a_head_shares_of_its_target_is_taken_too(tmp_path: Path) -> None:
    source, target = MODELS[DrafterKind.EAGLE], doubled(POCKET, tmp_path / "target")
    settings = DrafterSettings(kind=DrafterKind.EAGLE, model=source, target=target, kv_tokens=2048)
    served, other = weights_in(DrafterKind.EAGLE, source), load_proposer(settings, SystemClock()).weights
    assert other is not None and not _same(served, other)
    served.copy_from(other)
    assert _same(served, other)


def test_a_quantised_draft_model_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MODELS[DrafterKind.STANDALONE], tmp_path / "quantised"))
    quantised(folder, *FORMS["compressed-tensors, int"])
    with pytest.raises(Unsupported, match="is not supported for a model that is quantised; start it anew"):
        weights_in(DrafterKind.STANDALONE, folder)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[tuple[Engine, Updates, Path]]:
    """A drafter with an EAGLE-3 head, and the folder of its revisions."""
    kind, root = DrafterKind.EAGLE3, tmp_path / "weights"
    root.mkdir()
    settings = DrafterSettings(kind=kind, model=MODELS[kind], target=POCKET, kv_tokens=2048, weights_dir=root)
    engine = Engine(load_table(settings, SystemClock()), SystemClock(), Unheard(), lambda: None)
    engine.start()
    updates = Updates(settings, lambda other: load_proposer(other, SystemClock()))
    updates.loaded()
    yield engine, updates, root
    engine.stop()


class Unheard:
    """An outbox of which nobody reads."""

    def deliver(self, outgoing: Outgoing, cycle: Cycle | None) -> None: ...


async def test_one_update_at_a_time_is_taken_and_counted(head: tuple[Engine, Updates, Path]) -> None:
    engine, updates, root = head
    doubled(MODELS[DrafterKind.EAGLE3], root / "step-2", as_speculators_has_it)
    both = (updates.update(engine, UpdateWeights("step-2")) for _ in range(2))
    taken, refused = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(taken, Updated) and taken.version == engine.weights_version == 2
    assert isinstance(refused, Exhausted) and "being updated already, to step-2" in str(refused)
    assert _same(_weights_of(engine), weights_in(DrafterKind.EAGLE3, root / "step-2"))


@pytest.mark.parametrize(
    ("named", "config", "said"),
    [
        (
            lambda name: name.replace("norm.weight", "norm.scale"),
            {},
            r"norm\.weight is missing, .*norm\.scale .* is left over",
        ),
        (str, {"rms_norm_eps": 0.5}, "another model, by config.json: rms_norm_eps is 0.5, expected"),
        (str, {"architectures": ["LlamaForCausalLM"]}, "another model, by config.json: architectures is"),
    ],
)
async def test_the_weights_before_stay_where_others_do_not_fit(
    head: tuple[Engine, Updates, Path], named: Callable[[str], str], config: dict[str, Any], said: str
) -> None:
    engine, updates, root = head
    folder = doubled(MODELS[DrafterKind.EAGLE3], root / "wrong", named)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    with pytest.raises(SpecsplitError, match=said):
        await updates.update(engine, UpdateWeights("wrong"))
    assert engine.weights_version == 1
    assert _same(_weights_of(engine), weights_in(DrafterKind.EAGLE3, MODELS[DrafterKind.EAGLE3]))


def _weights_of(engine: Engine) -> DraftWeights:
    assert engine.weights is not None
    return engine.weights


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "ngram", "weights_dir": "w"}, "kind ngram has no weights"),
        ({"kind": "standalone", "model": "m"}, "weights_dir of the drafter is not set"),
        ({"kind": "standalone", "model": "m", "weights_dir": "w", "dp_size": 2}, "does not go with dp_size"),
        (
            {"kind": "eagle3", "model": "m", "target": "t", "weights_dir": "w", "feature_projection": True},
            "does not go with feature_projection",
        ),
    ],
)
async def test_what_cannot_be_taken_is_refused_before_anything_is_read(settings: dict[str, Any], said: str) -> None:
    def load(other: DrafterSettings) -> Any:
        raise AssertionError("nothing is read")

    updates = Updates(DrafterSettings(**settings), load)
    with pytest.raises(Unsupported, match=said) as refused:
        await updates.update(Engine.__new__(Engine), UpdateWeights("x"))
    assert isinstance(refused.value, SpecsplitError)
