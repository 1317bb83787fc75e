"""A gateway's request is our own request in other words, and an answer is ours in other words."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from specsplit.engine import EngineLoad, ModelConfig, engine_load
from specsplit.errors import InvalidRequest, Unsupported
from specsplit.membership import Member
from specsplit.requests import Delta, Done, GenerateRequest, Prompt, TextPrompt, TokenPrompt
from specsplit.values import (
    Constraint,
    ConstraintKind,
    DrafterInfo,
    DrafterKind,
    FinishReason,
    Load,
    ModelInfo,
    PromptLogprobs,
    Sampling,
    SpeculationStatistics,
    Stopping,
    TokenLogprob,
    Usage,
    Vocabulary,
)
from specsplit.wire import vllm

PROMPT = pb.TokenizedInput(original_text="x", input_ids=[5, 6, 7])


def asked(prompt: pb.TokenizedInput | None = PROMPT, stream: bool = False, **sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id="r", tokenized=prompt, stream=stream, sampling_params=pb.SamplingParams(**sampling)
    )


def read(**sampling: Any) -> GenerateRequest:
    return vllm.generate_from_wire(asked(**sampling))


def test_what_a_gateway_leaves_out_is_what_vllm_has_for_it() -> None:
    expected = GenerateRequest(TokenPrompt((5, 6, 7)), "r", Sampling(temperature=1.0))
    assert read() == expected
    assert read(top_p=0.0, repetition_penalty=0.0, n=0) == expected


def decimals(least: float, most: float) -> st.SearchStrategy[float]:
    """Numbers as people write them: four digits behind the point at most."""
    return st.integers(math.ceil(least * 10_000), math.floor(most * 10_000)).map(lambda each: each / 10_000)


samplings = st.builds(
    Sampling,
    temperature=decimals(0, 2),
    top_k=st.integers(0, 100),
    top_p=decimals(0.0001, 1),
    min_p=decimals(0, 1),
    seed=st.integers(0, 2**31 - 1),
    logit_bias=st.dictionaries(st.integers(0, 99), decimals(-100, 100), max_size=5).map(
        lambda biases: tuple(sorted(biases.items()))
    ),
    repetition_penalty=decimals(0.0001, 2),
    frequency_penalty=decimals(-2, 2),
    presence_penalty=decimals(-2, 2),
)
stoppings = st.builds(
    Stopping,
    max_tokens=st.none() | st.integers(3, 9),
    stop_token_ids=st.lists(st.integers(0, 9)).map(tuple),
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 3),
)


@given(
    samplings,
    stoppings,
    st.booleans(),
    st.integers(1, 16),
    st.none() | st.integers(0, 20),
    st.none() | st.integers(0, 20),
    st.lists(st.text(min_size=1, max_size=5), max_size=4).map(tuple),
    st.booleans(),
)
def test_every_field_arrives_as_the_number_that_was_meant(
    sampling: Sampling,
    stopping: Stopping,
    seeded: bool,
    n: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
    stop: tuple[str, ...],
    include: bool,
) -> None:
    """A float32 on the way makes 0.7 no other number, so a seed gives the text that it gives our own client."""
    sent: dict[str, Any] = {
        **{name: value for name, value in vars(sampling).items() if name not in ("seed", "logit_bias")},
        **vars(stopping),
        "logit_bias": dict(sampling.logit_bias),
        "stop": stop,
        "n": n,
        "logprobs": logprobs,
        "prompt_logprobs": prompt_logprobs,
        "include_stop_str_in_output": include,
        "seed": sampling.seed if seeded else None,
    }
    expected = Sampling(**{**vars(sampling), "seed": sampling.seed if seeded else 0})
    assert read(**sent) == GenerateRequest(
        TokenPrompt((5, 6, 7)),
        "r",
        expected,
        seeded,
        stopping,
        stop,
        logprobs=logprobs,
        n=n,
        include_stop_str_in_output=include,
        prompt_logprobs=prompt_logprobs,
    )


def test_a_prompt_may_be_text() -> None:
    request = vllm.generate_from_wire(pb.GenerateRequest(text="def f"))
    assert request.prompt == TextPrompt("def f")


@pytest.mark.parametrize(
    ("sampling", "sentence"),
    [
        ({"temperature": -1.0}, "temperature: is -1.0, expected a number in"),
        ({"temperature": math.nan}, "temperature: is nan, expected a number in"),
        ({"top_p": 1.5}, "top_p: is 1.5, expected"),
        ({"min_p": 2.0}, "min_p: is 2.0, expected"),
        ({"n": 17}, r"n: is 17, expected 1\.\.16"),
        ({"logprobs": 21}, r"logprobs: is 21, expected 0\.\.20"),
        ({"prompt_logprobs": 21}, r"prompt_logprobs: is 21, expected 0\.\.20"),
        ({"prompt_logprobs": -1}, r"sampling_params\.prompt_logprobs: is -1, expected none below 0"),
        ({"logprobs": -1}, r"sampling_params\.logprobs: is -1, expected none below 0"),
        ({"seed": -2}, r"sampling_params\.seed: is -2, expected none below 0"),
        ({"logit_bias": {-3: 1.0}}, r"sampling_params\.logit_bias\[-3\]: is -3, expected none below 0"),
        ({"max_tokens": 0}, "max_tokens: is 0, expected at least 1"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens: is 4, expected at most max_tokens = 3"),
        ({"frequency_penalty": 3.0}, "frequency_penalty: is 3.0, expected"),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(sampling: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{sentence}"):
        read(**sampling)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("json_schema", "{}", Constraint(ConstraintKind.JSON_SCHEMA, "{}")),
        ("regex", "a*", Constraint(ConstraintKind.REGEX, "a*")),
        ("grammar", 'start: "a"', Constraint(ConstraintKind.GRAMMAR, 'start: "a"')),
        ("structural_tag", "{}", Constraint(ConstraintKind.STRUCTURAL_TAG, "{}")),
        ("json_object", True, Constraint(ConstraintKind.JSON_OBJECT)),
        ("json_object", False, None),
        ("choice", pb.ChoiceConstraint(choices=["a", "b"]), Constraint(ConstraintKind.CHOICE, choices=("a", "b"))),
    ],
)
def test_a_constraint_is_ours(field: str, value: object, expected: Constraint | None) -> None:
    """It holds from the first token on, whatever a gateway says of that."""
    assert read(**{field: value}).constraint == expected
    assert read(**{field: value}, grammar_from_first_token=True).constraint == expected


def test_a_request_without_a_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="input: is absent, expected tokenized or text"):
        vllm.generate_from_wire(pb.GenerateRequest(request_id="r"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("truncate_prompt_tokens", -1),
    ],
)
def test_sampling_that_specsplit_does_not_have_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(Unsupported, match=rf"^sampling_params\.{field}: is not supported.*; "):
        read(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mm_inputs", pb.MultimodalInputs()),
        ("extra_mm_inputs", [pb.MultimodalInputs(mm_hashes=["a"])]),
        ("media_refs", pb.MediaRefs()),
        ("kv_transfer_params", pb.KvTransferParams()),
        ("kv_transfer_params_json", ""),
        ("data_parallel_rank", 0),
    ],
)
def test_what_specsplit_does_not_have_is_refused_by_name_even_if_it_is_empty(field: str, value: object) -> None:
    request: dict[str, Any] = {"tokenized": PROMPT, field: value}
    with pytest.raises(Unsupported, match=rf"^{field}: is not supported"):
        vllm.generate_from_wire(pb.GenerateRequest(**request))


def test_a_field_of_a_later_version_is_refused() -> None:
    later = pb.GenerateRequest.FromString(asked().SerializeToString() + b"\x98\x06\x01")
    with pytest.raises(InvalidRequest, match="request: field number 99 is unknown"):
        vllm.generate_from_wire(later)


LOGPROBS = (TokenLogprob(8, -0.5, (TokenLogprob(8, -0.5), TokenLogprob(9, -1.5))), TokenLogprob(3, -2.0))
DELTAS = (
    Delta("a", (8, 3), 1, LOGPROBS, index=1),
    Delta("b", (4,), 0, (TokenLogprob(4, -0.25),), index=1),
    Delta("c", (), index=1),
)
USAGE = Usage(3, 3, 2)
DONE = Done("r", FinishReason.STOP, "z", USAGE, SpeculationStatistics(2, 5, 1, 1, 1), 7, "v1", index=1)
END = {
    "finish_reason": "stop", "prompt_tokens": 3, "completion_tokens": 3, "cached_tokens": 2, "index": 1, "matched_stop_str": "z",
    "spec_accepted_tokens": 1, "spec_draft_tokens": 5,
}  # fmt: skip


def told(*tokens: tuple[int, float, tuple[tuple[int, float], ...]]) -> pb.OutputLogProbs:
    tops = [pb.TopLogProbs(token_ids=[t for t, _ in top], values=[v for _, v in top]) for *_, top in tokens if top]
    return pb.OutputLogProbs(
        token_ids=[t for t, *_ in tokens], token_logprobs=[v for _, v, _ in tokens], top_logprobs=tops
    )


FIRST = ((8, -0.5, ((8, -0.5), (9, -1.5))), (3, -2.0, ()))
LAST = ((4, -0.25, ()),)


def test_a_streamed_answer_is_told_as_it_comes_and_its_end_repeats_nothing() -> None:
    write = vllm.Responses(GenerateRequest(TokenPrompt((5, 6, 7)), n=2), streamed=True)
    first = pb.GenerateStreamChunk(
        token_ids=[8, 3], prompt_tokens=3, completion_tokens=2, index=1, output_logprobs=told(*FIRST)
    )
    assert write(DELTAS[0]) == [pb.GenerateResponse(chunk=first)]
    last = pb.GenerateStreamChunk(
        token_ids=[4], prompt_tokens=3, completion_tokens=1, index=1, output_logprobs=told(*LAST)
    )
    assert write(DELTAS[1]) == [pb.GenerateResponse(chunk=last)]
    assert write(DELTAS[2]) == [], "text alone is nothing to a gateway"
    assert write(DONE) == [pb.GenerateResponse(complete=pb.GenerateComplete(**END))]  # pyright: ignore[reportArgumentType]


def test_deltas_that_were_held_back_are_one_chunk_with_the_one_behind_them() -> None:
    write = vllm.Responses(GenerateRequest(TextPrompt("x"), n=2), streamed=True)
    (response,) = write(DELTAS[1], [DELTAS[0]])
    assert list(response.chunk.token_ids) == [8, 3, 4] and response.chunk.completion_tokens == 3
    assert response.chunk.prompt_tokens == 0, "not known yet"


def test_an_answer_that_is_not_streamed_comes_whole_and_its_choices_in_order() -> None:
    write = vllm.Responses(GenerateRequest(TokenPrompt((5, 6, 7)), n=2), streamed=False)
    assert [write(each) for each in (*DELTAS, Delta("q", (1,)))] == [[]] * 4
    assert write(DONE) == []
    whole = pb.GenerateComplete(**END, output_ids=[8, 3, 4], output_logprobs=told(*FIRST, *LAST))  # pyright: ignore[reportArgumentType]
    first, second = write(Done("r", FinishReason.LENGTH, None, Usage(3, 1), SpeculationStatistics(), 7, "v1"))
    assert (first.complete.index, list(first.complete.output_ids)) == (0, [1])
    assert second == pb.GenerateResponse(complete=whole)


PIECES = (
    Delta("", (), prompt=PromptLogprobs(0, (5, 6), (TokenLogprob(6, -0.5, (TokenLogprob(9, -0.25),)),))),
    Delta("", (), prompt=PromptLogprobs(2, (7,), (TokenLogprob(7, -2.0, (TokenLogprob(7, -2.0),)),))),
)
INPUT = pb.InputLogProbs(
    token_logprobs=[pb.InputTokenLogProb(), pb.InputTokenLogProb(value=-0.5), pb.InputTokenLogProb(value=-2.0)],
    token_ids=[5, 6, 7],
    top_logprobs=[
        pb.TopLogProbs(),
        pb.TopLogProbs(values=[-0.25], token_ids=[9]),
        pb.TopLogProbs(values=[-2.0], token_ids=[7]),
    ],
)


@pytest.mark.parametrize("prompt", [TokenPrompt((5, 6, 7)), TextPrompt("x")])
def test_the_prompt_is_told_in_the_first_chunk_of_choice_0_and_never_again(prompt: Prompt) -> None:
    write = vllm.Responses(GenerateRequest(prompt, n=2, prompt_logprobs=1), streamed=True)
    assert [write(each) for each in PIECES] == [[], []]
    ((other,), (first,), (second,)) = (write(Delta("q", (1,), index=index)) for index in (1, 0, 0))
    assert first.chunk.input_logprobs == INPUT
    assert not other.chunk.HasField("input_logprobs") and not second.chunk.HasField("input_logprobs")
    (end,) = write(Done("r", FinishReason.LENGTH, None, Usage(3, 1), SpeculationStatistics(), 7, "v1"))
    assert not end.complete.HasField("input_logprobs")


def test_the_prompt_of_an_answer_without_a_token_is_told_at_its_end() -> None:
    write = vllm.Responses(GenerateRequest(TokenPrompt((5, 6, 7)), prompt_logprobs=1), streamed=True)
    assert [write(each) for each in PIECES] == [[], []]
    (end,) = write(Done("r", FinishReason.STOP, 3, Usage(3, 0), SpeculationStatistics(), 7, "v1"))
    assert end.complete.input_logprobs == INPUT


@pytest.mark.parametrize(
    "events",
    [(*PIECES, Delta("q", (1,)), DONE), (DONE, *PIECES, Delta("q", (1,)))],
    ids=["before any end", "behind one"],
)
def test_the_prompt_is_told_with_every_choice_that_is_not_streamed(events: tuple[Delta | Done, ...]) -> None:
    write = vllm.Responses(GenerateRequest(TokenPrompt((5, 6, 7)), n=2, prompt_logprobs=1), streamed=False)
    assert [write(each) for each in events] == [[]] * 4
    both = write(Done("r", FinishReason.LENGTH, None, Usage(3, 1), SpeculationStatistics(), 7, "v1"))
    assert [each.complete.input_logprobs for each in both] == [INPUT] * 2


def test_without_likeliest_tokens_there_are_no_lists_of_them_as_with_vllm() -> None:
    write = vllm.Responses(GenerateRequest(TokenPrompt((5, 6, 7)), prompt_logprobs=0), streamed=False)
    write(Delta("", (), prompt=PromptLogprobs(0, (5, 6), (TokenLogprob(6, -0.5),))))
    (end,) = write(Done("r", FinishReason.LENGTH, None, Usage(3, 1), SpeculationStatistics(), 7, "v1"))
    assert not end.complete.input_logprobs.top_logprobs and len(end.complete.input_logprobs.token_logprobs) == 2


@given(st.integers(1, 400), st.integers(0, 20))
def test_what_is_allowed_fits_into_a_message_and_more_is_refused_by_name(tokens: int, most: int) -> None:
    """The largest token ids and full lists."""
    ids, tops = [2**32 - 1] * tokens, tuple(TokenLogprob(2**32 - 1, -1.5) for _ in range(most))
    piece = PromptLogprobs(0, ids, [TokenLogprob(2**32 - 1, -1.5, tops)] * (tokens - 1))
    request = GenerateRequest(TextPrompt("x"), prompt_logprobs=most)

    def completed(max_bytes: int) -> int:
        write = vllm.Responses(request, streamed=False, max_message_bytes=max_bytes)
        write(Delta("", (), prompt=piece))
        (end,) = write(Done("r", FinishReason.LENGTH, None, Usage(3, 1), SpeculationStatistics(), 7, "v1"))
        return end.complete.input_logprobs.ByteSize()

    size = completed(2**24)
    with pytest.raises(
        InvalidRequest, match=rf"^sampling_params\.prompt_logprobs: is {most}, which for {tokens} tokens"
    ):
        completed(size - 1)
    with pytest.raises(InvalidRequest, match="max_message_bytes is 9; ask for fewer"):
        vllm.generate_from_wire(asked(prompt_logprobs=most), 9)


def test_what_was_held_back_before_the_end_of_a_streamed_choice_is_a_chunk_before_it() -> None:
    write = vllm.Responses(GenerateRequest(TokenPrompt((5, 6, 7)), n=2), streamed=True)
    chunk, complete = write(DONE, [DELTAS[1]])
    assert list(chunk.chunk.token_ids) == [4] and complete.complete.finish_reason == "stop"


@pytest.mark.parametrize(("stops", "matched"), [((11,), 11), ((), None)])
def test_a_token_that_ended_a_choice_is_told_if_the_request_named_it(
    stops: tuple[int, ...], matched: int | None
) -> None:
    write = vllm.Responses(GenerateRequest(TokenPrompt((5,)), stopping=Stopping(None, stops)), streamed=True)
    (response,) = write(Done("r", FinishReason.STOP, 11, USAGE, SpeculationStatistics(), 0, "v1"))
    complete = response.complete
    assert (complete.matched_token_id if complete.HasField("matched_token_id") else None) == matched


def test_the_model_is_told_with_its_own_numbers() -> None:
    info = ModelInfo("smol", Vocabulary(100, "ab"), 64, (2, 3))
    told = vllm.model_info_to_wire(info, ModelConfig("llama", ("LlamaForCausalLM",), 1, 4), "/models/smol")
    assert told == pb.GetModelInfoResponse(
        model_path="/models/smol", tokenizer_path="/models/smol", served_model_name="smol", is_generation=True, max_context_length=64,
        max_req_input_len=63, vocab_size=100, eos_token_ids=[2, 3], model_type="llama",
        architectures=["LlamaForCausalLM"], bos_token_id=1, pad_token_id=4,
    )  # fmt: skip


def member(role: ModelInfo | DrafterInfo, load: Load, *, draining: bool = False) -> Member:
    return Member("m", "host:1", role, 8, load, draining)


def test_the_load_is_that_of_all_verifiers_that_take_requests() -> None:
    target = ModelInfo("smol", Vocabulary(100), 64)
    busy = Load(free_pages=2, total_pages=10, page_size=16)
    members = (
        member(target, busy),
        member(target, Load(total_pages=10, free_pages=10, page_size=16)),
        member(target, busy, draining=True),
        member(DrafterInfo(DrafterKind.NGRAM, "", None, 64), busy),
    )
    load = engine_load(members, running=4, waiting=1)
    assert load == EngineLoad(running=4, waiting=1, max_running=16, used_tokens=128, max_tokens=320)
    assert vllm.loads_to_wire([load], "now", "0.1") == pb.GetLoadsResponse(
        timestamp="now",
        version="0.1",
        dp_rank_count=1,
        loads=[
            pb.SchedulerLoad(
                num_running_reqs=4, num_waiting_reqs=1, num_total_reqs=5, num_used_tokens=128,
                max_total_num_tokens=320, token_usage=0.4, utilization=0.25, max_running_requests=16,
            )
        ],
    )  # fmt: skip


def test_the_load_of_no_verifier_is_nothing() -> None:
    load = engine_load((), 0, 2)
    assert (load.token_usage, load.utilization, load.waiting) == (0.0, 0.0, 2)


@given(st.integers(1, 200_000))
def test_an_archive_is_cut_into_messages_of_which_the_last_has_the_digest(size: int) -> None:
    data = bytes(each % 251 for each in range(size))
    messages = list(vllm.archive_to_wire(data, "digest"))
    assert b"".join(each.data for each in messages) == data
    assert [each.sha256 for each in messages] == [""] * (len(messages) - 1) + ["digest"]
    assert max(len(each.data) for each in messages) <= 64 * 1024
