"""Adapters of a target over whole processes: the text of each is that of a target with the adapter's weights merged into its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from specsplit.cli.local import LocalCluster
from specsplit.client import Client, Delta, Done, Options, Result
from specsplit.errors import InvalidRequest
from tests.support.adapters import merged, write_adapter
from tests.support.command import run
from tests.system.conftest import SERIAL, as_soon_as

POCKET = Path("models/pocket")
BASE, ADAPTERS = "", ("first", "second")
NAMES = (BASE, *ADAPTERS)
PROMPTS = ("def add(a, b):\n", "class Stack:\n    def push(self, item):\n")
WAYS: Mapping[str, Options] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 2024},
    "choices": {"temperature": 0.8, "seed": 7, "n": 2},
}
NEW, LONG = 32, 160
ALONE = {"dtype": "float32"}
Texts = Mapping[tuple[str, str, str], tuple[tuple[int, ...], ...]]
"""Tokens of every choice, by adapter, way and prompt."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two adapters of the pocket target in one folder, one of attention alone."""
    folder = tmp_path_factory.mktemp("adapters")
    write_adapter(folder / "first", POCKET / "target", 1, size=0.2)
    write_adapter(folder / "second", POCKET / "target", 2, rank=8, modules=("q_proj", "v_proj", "o_proj"), size=0.45)
    return folder


def ask(client: Client, prompt: str, way: str, *, adapter: str = "", drafter: str = "none") -> Result:
    asked: Options = {"max_tokens": NEW, "ignore_eos": True, "adapter": adapter, "drafter": drafter, "plan": SERIAL}
    return client.generate(prompt, timeout_s=240, **{**asked, **WAYS[way]})


def tokens_of(result: Result) -> tuple[tuple[int, ...], ...]:
    return tuple(choice.tokens for choice in result.choices)


@pytest.fixture(scope="module")
def merges(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The target, and what it is with each adapter merged into it."""
    root = tmp_path_factory.mktemp("merged")
    return {BASE: POCKET / "target"} | {
        name: merged(POCKET / "target", folder / name, root / name) for name in ADAPTERS
    }


@pytest.fixture(scope="module")
def expected(merges: Mapping[str, Path]) -> Texts:
    """What verifiers of the merged weights say, which know nothing of adapters."""
    texts: dict[tuple[str, str, str], tuple[tuple[int, ...], ...]] = {}
    for name, target in merges.items():
        with LocalCluster(target, verifier=ALONE) as cluster, cluster.client() as client:
            for way, prompt in product(WAYS, PROMPTS):
                texts[name, way, prompt] = tokens_of(ask(client, prompt, way))
            long = client.generate(PROMPTS[0], max_tokens=LONG, ignore_eos=True, timeout_s=240)
            texts[name, "long", PROMPTS[0]] = (long.tokens,)
    return texts


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    """Two verifiers with the adapters and one without, and drafters that were made for the target."""
    verifier = {**ALONE, "adapters_dir": folder, "paced_step_base_ms": 5.0}
    with LocalCluster(
        POCKET / "target",
        {"eagle3": POCKET / "eagle3"},
        verifiers=2,
        drafters=["eagle3", "ngram"],
        verifier=verifier,
    ) as started:
        started.spawn_verifier(adapters_dir=None)
        started.wait_joined()
        yield started


def test_the_adapters_change_what_the_target_says(expected: Texts) -> None:
    for way in ("greedy", "seeded"):
        assert len({tuple(expected[name, way, prompt] for prompt in PROMPTS) for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("drafter", ["eagle3", "ngram", "none"])
def test_sessions_of_all_adapters_and_of_none_side_by_side_get_the_text_of_the_merged_weights(
    cluster: LocalCluster, expected: Texts, drafter: str
) -> None:
    asked = [*product(NAMES, WAYS, PROMPTS)]
    with cluster.client() as client, ThreadPoolExecutor(6) as pool:
        running = [pool.submit(ask, client, prompt, way, adapter=name, drafter=drafter) for name, way, prompt in asked]
        results = dict(zip(asked, [each.result() for each in running], strict=True))
    assert {key: tokens_of(result) for key, result in results.items()} == {key: expected[key] for key in asked}
    plain = cluster.verifiers[-1].name
    adapted = [choice for (name, *_), each in results.items() if name != BASE for choice in each.choices]
    assert not [choice for choice in adapted if choice.done.verifier == plain]
    if drafter != "none":
        assert sum(choice.speculation.drafted for choice in adapted)
    if drafter == "eagle3":
        assert sum(choice.speculation.accepted for choice in adapted), "a head that was made for the target drafts on"


def test_what_is_cached_of_a_text_with_one_adapter_is_of_no_use_with_another(
    cluster: LocalCluster, expected: Texts
) -> None:
    prompt = PROMPTS[1] * 12
    with cluster.client() as client:

        def cached(name: str) -> int:
            return client.generate(prompt, max_tokens=1, adapter=name, drafter="none").usage.cached_prompt_tokens

        for name in NAMES:
            assert cached(name) == 0, "whoever has asked for the same text before"
            as_soon_as(lambda name=name: cached(name) > 0)
        for name in NAMES:
            assert ask(client, PROMPTS[0], "greedy", adapter=name).tokens == expected[name, "greedy", PROMPTS[0]][0]


def test_an_answer_is_resumed_with_its_adapter(cluster: LocalCluster, expected: Texts) -> None:
    (whole,) = expected["second", "seeded", PROMPTS[0]]
    with cluster.client() as client:
        asked: Options = {"max_tokens": NEW, "ignore_eos": True, "adapter": "second", "resume_from": whole[:11]}
        rest = client.generate(PROMPTS[0], timeout_s=240, **{**asked, **WAYS["seeded"]})
    assert rest.tokens == whole[11:]


@pytest.mark.parametrize("drafter", ["eagle3", "none"])
def test_a_session_whose_verifier_is_lost_goes_on_with_its_adapter(
    cluster: LocalCluster, expected: Texts, drafter: str
) -> None:
    tokens, done = list[int](), list[Done]()
    with cluster.client() as client:
        before, lost = client.cluster().failovers, ""
        stream = client.stream(
            PROMPTS[0], max_tokens=LONG, ignore_eos=True, adapter="first", drafter=drafter, plan=SERIAL, timeout_s=240
        )
        for event in stream:
            tokens += event.tokens if isinstance(event, Delta) else ()
            done += [event] if isinstance(event, Done) else []
            if not lost and len(tokens) > 4 and (lost := _deciding(client)):
                child = next(each for each in cluster.verifiers if each.name == lost)
                child.kill()
                child.wait(30)
        assert lost, "the session was over before a verifier had told of it"
        assert client.cluster().failovers == before + 1
    assert tuple(tokens) == expected["first", "long", PROMPTS[0]][0]
    assert done[0].verifier not in (lost, cluster.verifiers[-1].name)
    cluster.revive(next(each for each in cluster.verifiers if each.name == lost))
    cluster.wait_joined()


def _deciding(client: Client) -> str:
    """The verifier that has a session; empty as long as none has told so."""
    return next((each.member_id for each in client.cluster().members if each.plan and each.load.sessions), "")


def test_an_adapter_that_is_not_there_is_refused_with_the_names_of_those_that_are(cluster: LocalCluster) -> None:
    with cluster.client() as client:
        assert [adapter.name for adapter in client.model_info().adapters] == [*ADAPTERS]
        with pytest.raises(
            InvalidRequest, match="adapter: is third, expected one of first, second, or none for target"
        ):
            client.generate(PROMPTS[0], adapter="third")


def test_the_command_line_asks_for_an_adapter_and_shows_which_there_are(
    cluster: LocalCluster, expected: Texts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # members that were lost have columns of their own
    how = ("--max-tokens", str(NEW), "--ignore-eos", "--adapter", "first", "--json", "--address", cluster.address)
    assert run("generate", "-p", PROMPTS[0], *how) == 0
    assert tuple(json.loads(capsys.readouterr().out)["token_ids"]) == expected["first", "greedy", PROMPTS[0]][0]
    assert run("status", "--once", "--address", cluster.address) == 0
    assert "first, second" in capsys.readouterr().out
    assert run("status", "--once", "--json", "--address", cluster.address) == 0
    members = json.loads(capsys.readouterr().out)["members"]
    named = [[each["name"] for each in member["verifier"]["adapters"]] for member in members if "verifier" in member]
    assert sorted(named) == [[], [*ADAPTERS], [*ADAPTERS]]
