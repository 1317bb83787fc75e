"""A running cluster goes on with other weights of its target and with the adapters that are in the folder by then."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specsplit.cli.local import LocalCluster
from specsplit.client import Client, Delta, Options
from specsplit.engine import UpdateWeights
from specsplit.errors import InvalidRequest
from specsplit.text.tokenizer import Tokenizer
from tests.support.adapters import merged, write_adapter
from tests.support.greedy import greedy_texts

from .conftest import SERIAL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

POCKET = Path("models/pocket/target")
TEXT = "def add(a, b):\n"
PROMPT = Tokenizer.load(POCKET).encode(TEXT)
NEW, LONG = 32, 400


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two revisions of the pocket target, and two adapters in a folder."""
    root = tmp_path_factory.mktemp("root")
    for name in ("first", "second"):
        shutil.copytree(POCKET, root / name)
    model = AutoModelForCausalLM.from_pretrained(root / "second")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.add_(torch.randn_like(parameter), alpha=0.03 * parameter.float().std().item())
    model.save_pretrained(root / "second")
    write_adapter(root / "adapters" / "goes", POCKET, 1, size=0.2)
    write_adapter(root / "adapters" / "sql", POCKET, 2, modules=("q_proj", "v_proj"), size=0.45)
    return root


@pytest.fixture(scope="module")
def cluster(root: Path) -> Iterator[LocalCluster]:
    verifier = {
        "weights_dir": root,
        "adapters_dir": root / "adapters",
        "dtype": "float32",
        "paced_step_base_ms": 5.0,
    }
    drafts = {"eagle3": POCKET.parent / "eagle3"}
    with LocalCluster(root / "first", drafts, drafters=["eagle3", "ngram"], verifiers=2, verifier=verifier) as cluster:
        yield cluster


def ask(client: Client, adapter: str, drafter: str = "none") -> list[int]:
    asked: Options = {"max_tokens": NEW, "ignore_eos": True, "adapter": adapter, "drafter": drafter, "plan": SERIAL}
    return list(client.generate(TEXT, timeout_s=120, **asked).tokens)


def text_of(folder: Path) -> list[int]:
    return greedy_texts(folder, [[*PROMPT]], NEW)[0][len(PROMPT) :]


def test_adapters_come_change_and_go_with_an_update_and_are_asked_for_at_once(
    cluster: LocalCluster, root: Path, tmp_path: Path
) -> None:
    with cluster.client() as client:
        before = {name: ask(client, name) for name in ("", "goes", "sql")}
        assert len(set(map(tuple, before.values()))) == 3
        unfit = Path(shutil.copytree(root / "adapters" / "sql", root / "adapters" / "unfit"))
        (unfit / "adapter_model.safetensors").write_bytes(b"no weights")
        for answer in client.update_weights(UpdateWeights("second"), timeout_s=120):
            assert answer.version == 0 and "adapter unfit: adapter_model.safetensors cannot be read" in answer.message
        assert {name: ask(client, name) for name in before} == before, "the update failed as a whole"
        for gone in ("unfit", "goes", "sql"):
            shutil.rmtree(root / "adapters" / gone)
        for seed, name in enumerate(("sql", "law"), 3):
            write_adapter(root / "adapters" / name, POCKET, seed, rank=8, size=0.4)
        answers = client.update_weights(UpdateWeights("second"), timeout_s=120)
        assert len(answers) == 2 and all(answer.version == 2 for answer in answers)
        assert all("adapters: 1 new (law), 1 gone (goes), 1 changed (sql)" in answer.message for answer in answers)
        assert [each.name for each in client.model_info().adapters] == ["law", "sql"], "as soon as it is answered"
        wanted = {
            name: text_of(merged(root / "second", root / "adapters" / name, tmp_path / name)) for name in ("law", "sql")
        }
        wanted[""] = text_of(root / "second")
        for drafter in ("none", "ngram", "eagle3"):
            for _ in range(2):
                assert {name: ask(client, name, drafter) for name in wanted} == wanted, drafter
        for name in ("goes", "unknown"):
            with pytest.raises(
                InvalidRequest, match=f"adapter: is {name}, expected one of law, sql, or none for first"
            ):
                ask(client, name)


def test_requests_whose_adapter_is_gone_end_and_others_go_on_with_theirs(cluster: LocalCluster, root: Path) -> None:
    with cluster.client() as client:
        write_adapter(root / "adapters" / "brief", POCKET, 7)
        assert all(answer.version for answer in client.update_weights(UpdateWeights("first"), timeout_s=120))
        shutil.rmtree(root / "adapters" / "brief")
        over, begun = threading.Event(), {name: threading.Event() for name in ("brief", "sql")}
        with ThreadPoolExecutor() as pool:
            running = {name: pool.submit(follow, client, name, begun[name], over) for name in begun}
            try:
                assert all(each.wait(60) for each in begun.values())
                answers = client.update_weights(UpdateWeights("second", restart=True), timeout_s=120)
                assert all(answer.version for answer in answers)
            finally:
                over.set()
            with pytest.raises(InvalidRequest, match="adapter: is brief, expected one of law, sql, or none for first"):
                running["brief"].result(120)
            assert {*running["sql"].result(120)} == {LONG}


def follow(client: Client, adapter: str, begun: threading.Event, over: threading.Event) -> list[int]:
    """Have long texts written one after the other until it is over -> how long each was."""
    lengths = list[int]()
    while not over.is_set():
        lengths.append(0)
        for event in client.stream(TEXT, adapter=adapter, drafter="none", max_tokens=LONG, ignore_eos=True):
            if isinstance(event, Delta):
                lengths[-1] += len(event.tokens)
                begun.set()
    return lengths
