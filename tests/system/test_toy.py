"""Three real processes over a target whose output can be worked out by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from specsplit.cli.local import LocalCluster
from specsplit.client import Client, Delta, Done
from specsplit.client.options import Options
from specsplit.errors import DeadlineExceeded, InvalidRequest
from specsplit.values import DrafterInfo, DrafterKind, FinishReason
from tests.system.conftest import SERIAL, WAITING, empty, eventually, letters

CHAIN = replace(SERIAL, topk=1)
"""A draft's first choices alone."""


@pytest.mark.parametrize("drafter", ["none", "ngram", "standalone"])
def test_the_alphabet_is_written_exactly_whatever_the_drafter(trio: LocalCluster, drafter: str) -> None:
    with trio.client() as client:
        result = client.generate("hello a", max_tokens=60, drafter=drafter, plan=WAITING)
    assert result.text == letters("a", 60)
    assert result.tokens == tuple(letters("a", 60).encode())
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (7, 60)
    assert result.reason is FinishReason.LENGTH
    if drafter == "none":
        assert result.speculation.steps == 60 and result.speculation.drafted == 0
    else:
        assert result.speculation.accepted > 10 and result.speculation.steps < 50
        assert result.speculation.steps + result.speculation.accepted >= 60


def test_a_draft_that_errs_after_m_is_corrected_there_every_time(trio: LocalCluster) -> None:
    with trio.client() as client:
        events = client.stream("k", max_tokens=78, drafter="standalone", plan=CHAIN)
        deltas = [event for event in events if isinstance(event, Delta)]
    committed = "k"
    for delta in deltas:
        text = bytes(delta.tokens).decode()
        drafts = text[: delta.num_correct_drafts]
        for i, character in enumerate(drafts):
            before = (committed + drafts)[len(committed) + i - 1]
            assert not (before == "m" and character == "n"), "the draft never proposes n after m"
        committed += text
    assert committed == "k" + letters("k", 78)
    assert sum(delta.num_correct_drafts for delta in deltas) > 30, "everywhere else it is right"


def test_the_same_seed_gives_the_same_text_with_any_drafter(trio: LocalCluster) -> None:
    with trio.client() as client:
        texts = {
            client.generate("seed", max_tokens=40, temperature=6.0, seed=11, ignore_eos=True, drafter=drafter).tokens
            for drafter in ("none", "ngram", "standalone", "none")
        }
        drawn = client.generate("seed", max_tokens=20, temperature=6.0, ignore_eos=True)
        again = client.generate("seed", max_tokens=20, temperature=6.0, ignore_eos=True, seed=drawn.seed)
    assert len(texts) == 1
    assert again.tokens == drawn.tokens


def test_stop_strings_span_tokens_and_nothing_past_them_is_streamed(trio: LocalCluster) -> None:
    with trio.client() as client:
        events = list(client.stream("a", max_tokens=50, stop=["jkl", "zzz"]))
    done = events[-1]
    assert "".join(e.text for e in events if isinstance(e, Delta)) == "bcdefghi"
    assert isinstance(done, Done) and done.matched_stop == "jkl" and done.reason is FinishReason.STOP


def test_sixteen_clients_at_once_get_their_own_text(trio: LocalCluster) -> None:
    def one(i: int) -> tuple[str, str]:
        start = chr(ord("a") + i)
        with trio.client() as client:
            return start, client.generate(start, max_tokens=40, drafter=("none", "ngram", "standalone")[i % 3]).text

    with ThreadPoolExecutor(16) as pool:
        for start, text in pool.map(one, range(16)):
            assert text == letters(start, 40)


def test_cancelling_at_any_moment_frees_everything_on_all_three_services(trio: LocalCluster) -> None:
    with trio.client() as client:
        for after in (0, 1, 2, 5, 9):
            stream = client.stream("p" * 100, max_tokens=300)
            for _, _ in zip(range(after), stream, strict=False):
                pass
            stream.close()
        with pytest.raises(DeadlineExceeded):
            client.generate("q" * 20, max_tokens=400, timeout_s=0.2)
        eventually(lambda: empty(client.cluster()))
        assert client.generate("a", max_tokens=3).text == "bcd"


WRONG: tuple[tuple[str, Options], ...] = (
    ("drafter", {"drafter": "eagle9"}),
    ("max_tokens", {"max_tokens": 100_000}),
    ("max_tokens", {"max_tokens": 0}),
    ("top_p", {"top_p": 7.0}),
    ("logprobs", {"logprobs": 50}),
    ("n", {"n": 30}),
    ("priority", {"priority": 3}),
    ("stop", {"stop": [""]}),
    ("stopping.stop_token_ids[0]", {"stop_token_ids": [99_999]}),
    ("sampling.logit_bias[99999]", {"logit_bias": {99_999: 1.0}}),
    ("resume_from[1]", {"resume_from": [5, 99_999], "seed": 1}),
    ("resume_from", {"resume_from": [5, 6], "max_tokens": 1, "seed": 1}),
)
"""The field that a refusal names, and options that are refused: by the client, the coordinator or the verifier."""


@pytest.mark.parametrize(("field", "options"), WRONG)
def test_what_is_wrong_is_refused_by_a_name_that_is_told_once(trio: LocalCluster, field: str, options: Options) -> None:
    with trio.client() as client, pytest.raises(InvalidRequest) as refused:
        client.generate("a", **options)
    assert (refused.value.field, str(refused.value)) == (field, f"{field}: {refused.value.problem}")
    name = field.rpartition(".")[2].partition("[")[0]
    assert not re.search(rf"\b{name}\b", refused.value.problem)


def test_the_command_line_tells_a_refusals_name_once(trio: LocalCluster) -> None:
    wrong = ["--logit-bias", "99999=1"]
    command = [sys.executable, "-m", "specsplit", "generate", "--address", trio.address, "--prompt", "a", *wrong]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 2
    told = "specsplit: sampling.logit_bias[99999]: is outside the vocabulary of "
    assert run.stderr.startswith(told) and run.stderr.count("logit_bias") == run.stderr.count("\n") == 1


def test_the_cli_prints_one_json_object(trio: LocalCluster) -> None:
    command = [sys.executable, "-m", "specsplit", "generate", "--address", trio.address]
    run = subprocess.run(
        [*command, "--prompt", "a", "--max-tokens", "5", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer = json.loads(run.stdout)
    assert answer["text"] == "bcdef" and answer["token_ids"] == list(b"bcdef")
    assert answer["usage"]["completion_tokens"] == 5 and answer["speculation"]["steps"] >= 1


def test_anyone_can_call_it_by_reflection(trio: LocalCluster) -> None:
    """As `buf curl` does: no generated code of ours on the caller's side."""
    with grpc.insecure_channel(trio.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "specsplit.v1.CoordinatorService" in database.get_services()
        pool = DescriptorPool(database)
        method = pool.FindServiceByName("specsplit.v1.CoordinatorService").FindMethodByName("Generate")
        request = GetMessageClass(method.input_type)(text="a", stopping={"max_tokens": 4})
        call = channel.unary_stream(
            "/specsplit.v1.CoordinatorService/Generate",
            request_serializer=_serialized,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        responses = [MessageToDict(response) for response in call(request, timeout=30)]
    deltas = [delta for r in responses for delta in (*r.get("earlier", ()), r.get("delta", {}))]
    assert "".join(delta.get("text", "") for delta in deltas) == "bcde"
    assert responses[-1]["done"]["usage"]["completionTokens"] == 4


def test_the_cluster_says_who_is_there(trio: LocalCluster) -> None:
    with Client(trio.address) as client:
        members = {member.member_id: member for member in client.cluster().members}
        info = client.model_info()
    assert set(members) == {"verifier-0", "standalone-0", "ngram-1"}
    assert info.max_context == 512 and info.vocabulary.size == 264
    kinds = {m.role.kind for m in members.values() if isinstance(m.role, DrafterInfo)}
    assert kinds == {DrafterKind.STANDALONE, DrafterKind.NGRAM}


def _serialized(message: object) -> bytes:
    assert isinstance(message, Message)
    return message.SerializeToString()
