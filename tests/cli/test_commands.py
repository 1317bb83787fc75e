"""What the commands print and how they fail: one clear line, exit 2 for what the caller got wrong."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from specsplit.cli.drafters import CHOICES
from specsplit.cli.folders import POCKET_LAYERS, inflation
from specsplit.cli.local import LocalCluster
from specsplit.cli.paint import Painter
from specsplit.cli.serve import SETTINGS, option_of
from specsplit.client import ChatMessage, ChatPrompt, Delta
from specsplit.errors import Exhausted
from specsplit.features import LAST, FeatureNeed
from specsplit.membership import Member
from specsplit.requests import GenerateEvent, GenerateRequest, TextPrompt
from specsplit.settings.groups import GROUPS
from specsplit.values import (
    DrafterInfo,
    DrafterKind,
    PromptLogprobs,
    Sampling,
    TokenLogprob,
)
from tests.client.scripted import DONE, EVENTS, Scripted, breaking, usual
from tests.support.command import run

POCKET = "models/pocket/target"
HEAD = Member("d2", "h:3", DrafterInfo(DrafterKind.EAGLE3, "head", None, 512, FeatureNeed((2, 3, LAST), 256)), 2)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nope"], "No such command 'nope'"),
        (["serve"], "Missing command"),
        (["serve", "oracle"], "oracle"),
        (["generate", "--bogus"], "--bogus"),
        (["generate", "-p", "x", "--temperature", "hot"], "--temperature"),
        (["generate", "-p", "x", "--temperature=-1"], "temperature: is -1.0"),
        (["generate", "-p", "x", "--top-p", "2"], "top_p: is 2.0"),
        (["generate", "-p", "x", "--max-tokens", "0"], "max_tokens: is 0"),
        (["generate", "-p", "x", "--n", "0"], "n: is 0, expected 1..16"),
        (["generate", "-p", "x", "--logprobs", "21"], "logprobs: is 21"),
        (["generate", "-p", "x", "--logprobs=-1"], "logprobs: is -1"),
        (["generate", "-p", "x", "--prompt-logprobs", "21"], "prompt_logprobs: is 21"),
        (["generate", "-p", "x", "--address", "nowhere"], "expected host:port"),
        (["generate", "-p", "x", "--resume-from", "nofile"], "--resume-from: is 'nofile', expected token ids such as"),
        (["generate", "-p", "x", "--resume-from", "1,-2"], "--resume-from: is '1,-2', expected token ids such as"),
        (
            ["generate", "-p", "x", "--resume-from", "README.md"],
            "--resume-from: the file 'README.md' holds no token ids",
        ),
        (["generate", "-p", "x", "--resume-from", POCKET], "--resume-from: is 'models/pocket/target', expected token"),
        (["generate", "-p", "x", "--resume-from", "1", "--temperature", "1"], "resume_from: needs the seed"),
        (["generate", "-p", "x", "--resume-from", "1", "--n", "2"], "resume_from: goes with one choice only"),
        (["serve", "verifier"], "--model: is required"),
        (["serve", "drafter", "--kind", "eagle9"], "--kind: is 'eagle9'"),
        (["serve", "drafter", "--kind", "standalone"], "--model: is required for drafter kind standalone"),
        (["serve", "drafter", "--kind", "eagle3"], "--model: is required for drafter kind eagle3"),
        (["serve", "drafter", "--kind", "eagle3", "--model", "head"], "--target: is required for drafter kind eagle3"),
        (["serve", "drafter", "--kind", "ngram", "--target", POCKET], "--target: drafter kind ngram reads nothing"),
        (["serve", "drafter", "--model", "draft", "--feature-projection"], "--feature-projection: drafter kind stand"),
        (["serve", "drafter", "--kind", "ngram", "--feature-format", "int4"], "--feature-format: is 'int4'"),
        (["serve", "verifier", "--model", POCKET, "--feature-retention", "9"], "--feature-retention: is 9, too few"),
        (["serve", "coordinator", "--model", POCKET, "--max-queue", "x"], "--max-queue: is 'x'"),
        (["serve", "coordinator", "--model", POCKET, "--listen", "0.0.0.0:0"], "--insecure"),
        (["serve", "coordinator", "--model", POCKET, "--bogus", "1"], "--bogus"),
        (["serve", "coordinator", "--config", "no.toml"], "--config: there is no file no.toml"),
        (["up", "--model", "nowhere"], "--model: there is no folder nowhere"),
        (["up", "--model", "tests", "--drafter", "standalone"], "--draft-model: is required for standalone drafters"),
        (["up", "--model", "tests", "--drafter", "eagle3"], "--draft-model: is required for eagle3 drafters"),
        (["up", "--drafter", "ngram", "--drafter", "eagle9"], "--drafter: is 'eagle9'"),
        (["up", "--drafter", "ngram", "--draft-model", POCKET], "which no drafter that is asked for needs"),
        (["up", "--drafter", "ngram", "--drafters", "-1"], "--drafters"),
        (["up", "--model", POCKET, "--listen", "nonsense"], "--listen: is 'nonsense', expected host:port"),
        (
            ["up", "--model", POCKET, "--listen", "0.0.0.0:0"],
            "--listen: 0.0.0.0:0 can be reached from other machines and there is no TLS",
        ),
        (
            ["up", "--model", POCKET, "--web-listen", "[::]:0"],
            "--web-listen: [::]:0 can be reached from other machines, and the page is served without TLS",
        ),
        (["generate", "-p", "x", "--timeout-s=-1"], "--timeout-s"),
        (
            ["demo", "--models", "nowhere"],
            "--models: there are no target/ and one of eagle3/, dflash/, dspark/, multi_layer_eagle/",
        ),
        (["demo", "--drafter", "eagle9"], "--drafter: is 'eagle9', expected eagle3, dflash, dspark"),
        (["demo", "--drafter", "dspark"], "--drafter: is dspark, and there is no model in"),
        (["status", "--interval-s", "0"], "--interval-s"),
    ],
)
def test_a_bad_option_exits_2_with_one_line(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("specsplit: ")
    assert named in err


def test_an_unknown_name_in_a_settings_file_is_one_line(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path_factory.mktemp("settings") / "coordinator.toml"
    file.write_text(f'model = "{POCKET}"\nmax_kueue = 3\n')
    assert run("serve", "coordinator", "--config", str(file)) == 2
    assert (
        capsys.readouterr().err
        == f"specsplit: max_kueue in {file}: there is no such setting; did you mean max_queue?\n"
    )


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    out = capsys.readouterr().out
    assert all(command in out for command in ("demo", "up", "serve", "generate", "status"))


@pytest.mark.parametrize("service", SETTINGS)
def test_every_setting_is_an_option_with_its_help(service: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("serve", service, "--help") == 0
    out = capsys.readouterr().out
    assert "--config" in out
    for field, facts in SETTINGS[service].model_fields.items():
        assert f"{option_of(field)} " in out
        assert facts.description


@pytest.mark.parametrize("service", SETTINGS)
def test_the_help_of_a_service_has_every_option_below_the_name_of_its_group_in_80_columns(
    service: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("serve", service, "--help") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    headed, heading = dict[str, str](), ""
    for line in out.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            heading = line.removesuffix(":")
        elif line.startswith("  -"):
            headed[line.split()[0].partition("/")[0].rstrip(",")] = heading
    groups = {option_of(name): group for group, names in GROUPS.items() for name in names}
    assert headed == {option_of(name): groups[option_of(name)] for name in SETTINGS[service].model_fields} | {
        "--config": "Options",
        "-h": "Options",
    }


def test_every_setting_has_one_group_and_no_group_has_anything_else() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {name for settings in SETTINGS.values() for name in settings.model_fields}


@pytest.mark.parametrize("command", ["up", "generate"])
def test_the_help_names_every_kind_of_drafter(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    words = " ".join(capsys.readouterr().out.split())
    assert CHOICES in words


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ([], POCKET_LAYERS),
        (["--inflate-layers", "0"], 0),
        (["--model", POCKET], 0),
        (["--model", POCKET, "--inflate-layers", "9"], 9),
    ],
)
def test_up_inflates_the_pocket_target_alone_unless_told_otherwise_and_says_so(
    options: list[str], layers: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[LocalCluster] = []
    monkeypatch.setattr("specsplit.cli.up.watch", lambda cluster, _: started.append(cluster))
    assert run("up", *options) == 0
    assert started[0].settings("verifier")["inflate_layers"] == layers
    assert capsys.readouterr().out == (f"{inflation(layers)}\n" if layers else "")


def test_generate_prints_the_text_and_a_line_on_stderr(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("generate", "-p", "x", "--address", coordinator.address) == 0
    out, err = capsys.readouterr()
    assert out == "one two three"
    assert err.startswith("\n4 tokens"), "the summary begins a line of its own, also where both streams end in one pipe"
    assert "4 tokens in 2 steps, accept_length 2.00, 1 hits, 1 misses, drafter d1, finish_reason stop, seed 7" in err
    assert "seed 7, 2 of 3 prompt tokens cached" in err


def test_generate_json_is_one_object(coordinator: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", "-p", "x", "--json", "--address", coordinator.address) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "text": "one two three",
        "token_ids": [11, 12, 13, 14],
        "finish_reason": "stop",
        "matched_stop": "\n\n",
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "cached_prompt_tokens": 2},
        "speculation": {"steps": 2, "drafted": 8, "accepted": 2, "hits": 1, "misses": 1, "accept_length": 2.0},
        "no_drafts": None,
        "seed": 7,
        "request_id": "r1",
        "verifier": "v1",
        "drafter": "d1",
    }


def two_choices(request: GenerateRequest) -> Iterator[GenerateEvent]:
    yield Delta("first", (1,))
    yield Delta("other", (3,), index=1)
    yield replace(DONE, index=1, seed=8)
    yield Delta(" one", (2,))
    yield DONE


def test_generate_prints_choices_apart(coordinator: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    coordinator.script = two_choices
    assert run("generate", "-p", "x", "--n", "2", "--address", coordinator.address) == 0
    out, err = capsys.readouterr()
    assert out == "--- choice 0 of 2 ---\nfirst one\n--- choice 1 of 2 ---\nother"
    assert [line.partition("seed ")[2].partition(",")[0] for line in err.split("\n")[1:-1]] == ["7", "8"]


def test_generate_json_lists_several_choices(coordinator: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    coordinator.script = two_choices
    assert run("generate", "-p", "x", "--n", "2", "--json", "--address", coordinator.address) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["text"] == "first one"
    assert [(choice["text"], choice["seed"]) for choice in printed["choices"]] == [("first one", 7), ("other", 8)]


LOGPROBS = (
    TokenLogprob(11, -0.5, (TokenLogprob(11, -0.5, text="one "), TokenLogprob(9, -math.inf, text="\n")), "one "),
    TokenLogprob(12, -1.25, (TokenLogprob(11, -0.5, text="one "), TokenLogprob(12, -1.25, text="two")), "two"),
)
"""Of the first delta's tokens."""


def with_logprobs(request: GenerateRequest) -> Iterator[GenerateEvent]:
    yield replace(EVENTS[0], logprobs=LOGPROBS)
    yield DONE


def test_generate_prints_a_table_of_log_probabilities(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.script = with_logprobs
    assert run("generate", "-p", "x", "--logprobs", "2", "--address", coordinator.address) == 0
    assert coordinator.asked[0].logprobs == 2
    text, *lines = capsys.readouterr().out.splitlines()
    assert text == "one two"
    assert [line.split() for line in lines] == [
        ["token", "logprob", "likeliest"],
        ["'one", "'", "-0.500", "'one", "'", "-0.500", r"'\n'", "-inf"],
        ["'two'", "-1.250", "'one", "'", "-0.500", "'two'", "-1.250"],
    ]


def test_generate_json_has_the_log_probabilities_that_were_asked_for(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.script = with_logprobs
    assert run("generate", "-p", "x", "--logprobs", "2", "--json", "--address", coordinator.address) == 0
    first, second = json.loads(capsys.readouterr().out)["logprobs"]
    assert second["text"] == "two"
    assert first == {
        "token_id": 11,
        "text": "one ",
        "logprob": -0.5,
        "top": [
            {"token_id": 11, "text": "one ", "logprob": -0.5},
            {"token_id": 9, "text": "\n", "logprob": None},
        ],
    }


def with_prompt(request: GenerateRequest) -> Iterator[GenerateEvent]:
    yield Delta("", (), prompt=PromptLogprobs(0, (7, 11), LOGPROBS[:1]))
    yield Delta("", (), prompt=PromptLogprobs(2, (12,), LOGPROBS[1:]))
    yield from (EVENTS[0], DONE)


def test_generate_prints_the_log_probabilities_of_the_prompt_below_the_text(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.script = with_prompt
    assert run("generate", "-p", "x", "--prompt-logprobs", "2", "--address", coordinator.address) == 0
    assert (coordinator.asked[0].prompt_logprobs, coordinator.asked[0].logprobs) == (2, None)
    text, *lines = capsys.readouterr().out.splitlines()
    assert text == "one two"
    assert [line.split()[0] for line in lines] == ["prompt", "'one", "'two'"]


def test_generate_json_has_the_log_probabilities_of_the_prompt(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.script = with_prompt
    assert run("generate", "-p", "x", "--prompt-logprobs", "2", "--json", "--address", coordinator.address) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [each["text"] for each in printed["prompt_logprobs"]] == ["one ", "two"] and "logprobs" not in printed


def test_generate_sends_what_the_options_say(coordinator: Scripted) -> None:
    options = (
        "--max-tokens 9 --temperature 0.5 --top-k 3 --top-p 0.9 --min-p 0.1 --seed 4 --stop a --stop b --drafter none"
    )
    run("generate", "-p", "hi", "--chat", *options.split(), "--address", coordinator.address)
    (request,) = coordinator.asked
    assert request.prompt == ChatPrompt((ChatMessage("user", "hi"),))
    assert (request.stopping.max_tokens, request.stop, request.drafter) == (9, ("a", "b"), "none")
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.seed) == (0.5, 3, 4)
    assert request.seeded


def test_generate_sends_biases_and_penalties(coordinator: Scripted) -> None:
    options = "--logit-bias 13=-100 --logit-bias 7=1.5 --repetition-penalty 1.1 --frequency-penalty 0.2 --presence-penalty -0.3"
    run("generate", "-p", "hi", *options.split(), "--address", coordinator.address)
    (request,) = coordinator.asked
    assert request.sampling == Sampling(
        logit_bias=((7, 1.5), (13, -100.0)), repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=-0.3
    )


@pytest.mark.parametrize("bias", ["13", "13=", "=1", "a=1", "1=b"])
def test_a_bias_that_is_none_is_refused_by_name(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str], bias: str
) -> None:
    assert run("generate", "-p", "hi", "--logit-bias", bias, "--address", coordinator.address) != 0
    assert "--logit-bias" in capsys.readouterr().err
    assert not coordinator.asked


def test_generate_reads_stdin(coordinator: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("def f():\n"))
    run("generate", "--address", coordinator.address)
    assert coordinator.asked[0].prompt == TextPrompt("def f():\n")


def test_a_failure_on_the_other_side_exits_1_with_one_line(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(request: GenerateRequest) -> Iterator[GenerateEvent]:
        raise Exhausted("full; try again in 1 s", 1.0)
        yield DONE

    coordinator.script = refuse
    assert run("generate", "-p", "x", "--address", coordinator.address) == 1
    assert capsys.readouterr().err == "specsplit: full; try again in 1 s\n"


@pytest.mark.parametrize("name", ["TLS_CERT", "TOKENS_FILE"])
def test_demo_says_that_it_has_no_options_for_what_the_environment_asks_of_clients(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SPECSPLIT_COORDINATOR_{name}", "some.file")
    assert run("demo") == 2
    assert f"SPECSPLIT_COORDINATOR_{name}: is set, and demo has no options for TLS" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("generate", "-p", "x"), ("status", "--once")])
def test_where_nobody_listens_one_line_says_what_to_do(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command, "--address", "127.0.0.1:9") == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("specsplit: coordinator 127.0.0.1:9: ")
    assert err.endswith("; is a coordinator running there? start one with specsplit up\n")


def test_accepted_drafts_and_bonus_tokens_have_colours_of_their_own() -> None:
    screen = io.StringIO()
    painter = Painter(Console(file=screen, force_terminal=True, color_system="standard", highlight=False))
    painter.paint(Delta("drafted", (1,), 1))
    painter.paint(Delta("[bold]bonus", (2,), 0))
    painter.paint(Delta("", (3,), 0))
    drafted, bonus = screen.getvalue().split("drafted")
    assert drafted == "\x1b[32m"
    assert "\x1b[1;33m[bold]bonus" in bonus


def test_to_a_file_goes_the_bare_text() -> None:
    file = io.StringIO()
    painter = Painter(Console(file=file))
    painter.paint(Delta("\tif x:\n", (1,), 1))
    painter.end()
    assert file.getvalue() == "\tif x:\n"


@pytest.mark.parametrize(
    "kept", ["11,12", " 11 12\n", "[11, 12]", '{"resume_from": [11, 12]}', '{"text": "one two", "token_ids": [11, 12]}']
)
def test_generate_goes_on_behind_token_ids_or_a_file_with_them(
    coordinator: Scripted, kept: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("kept") / "answer"
    file.write_text(kept)
    assert run("generate", "-p", "x", "--resume-from", str(file), "--address", coordinator.address) == 0
    assert run("generate", "-p", "x", "--resume-from", "11,12", "--address", coordinator.address) == 0
    assert [request.resume_from for request in coordinator.asked] == [(11, 12), (11, 12)]


def test_generate_tells_the_tokens_of_a_stream_that_broke_so_that_it_can_be_gone_on_with(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    coordinator.script = breaking
    arguments = ["generate", "-p", "x", "--address", coordinator.address]
    assert run(*arguments) == 1
    out, err = capsys.readouterr()
    assert out == "one two"
    assert err.splitlines()[0] == "--resume-from 11,12"
    assert "2 tokens of the answer had come: the same command with them as --resume-from gets the rest" in err
    assert run(*arguments, "--json") == 1
    out = capsys.readouterr().out
    assert json.loads(out)["text"] == "one two"
    kept = tmp_path_factory.mktemp("kept") / "answer.json"
    kept.write_text(out)
    coordinator.script = usual
    assert run(*arguments, "--resume-from", str(kept)) == 0
    assert coordinator.asked[-1].resume_from == (11, 12)


def test_what_a_resumed_run_prints_can_be_gone_on_with_too_and_has_all_tokens_of_the_answer(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["generate", "-p", "x", "--json", "--address", coordinator.address]
    assert run(*arguments, "--resume-from", "9,10") == 0
    out = capsys.readouterr().out
    assert json.loads(out)["token_ids"] == [11, 12, 13, 14], "as its text and logprobs, the rest"
    kept = tmp_path / "answer.json"
    kept.write_text(out)
    assert run(*arguments, "--resume-from", str(kept)) == 0
    assert coordinator.asked[-1].resume_from == (9, 10, 11, 12, 13, 14)


def test_generate_tells_the_tokens_of_a_stream_that_ended_without_its_last_message(
    coordinator: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.script = lambda request: iter(EVENTS[:1])
    assert run("generate", "-p", "x", "--address", coordinator.address) == 1
    err = capsys.readouterr().err
    assert err.splitlines()[0] == "--resume-from 11,12"
    assert "the coordinator ended the stream without its last message" in err


@pytest.mark.parametrize("long", ["1" * 5000, "1," + "2" * 5000], ids=["alone", "in a list"])
def test_a_number_that_is_far_too_long_for_a_token_id_is_refused_as_other_rubbish_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, long: str
) -> None:
    kept = tmp_path / "answer"
    kept.write_text(long)
    for given in (long, str(kept)):
        assert run("generate", "-p", "x", "--resume-from", given) != 0
        assert "token ids" in capsys.readouterr().err
