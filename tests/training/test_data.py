"""What users bring: files, and the prompts that they become."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from specsplit.errors import InvalidRequest, Unsupported
from specsplit.text.tokenizer import Tokenizer
from specsplit.training.examples import Example, read_examples
from specsplit.training.prompts import Prompt, make_prompts

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
USER = {"role": "user", "content": "add two numbers"}
ASSISTANT = {"role": "assistant", "content": "def add(a, b): return a + b"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(POCKET)


def lines(tmp_path: Path, *entries: Any) -> Path:
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(entry if isinstance(entry, str) else json.dumps(entry) for entry in entries))
    return file


def test_lines_of_every_shape_and_plain_text_are_read_in_order(tmp_path: Path) -> None:
    plain = tmp_path / "notes.txt"
    plain.write_text("some text\n")
    file = lines(tmp_path, {"messages": [USER], "id": 7}, "", {"prompt": "once"}, {"text": "upon\u2028a time"})
    assert read_examples([file, plain]) == [
        Example(f"{file}, line 1", messages=(("user", USER["content"]),)),
        Example(f"{file}, line 3", prompt="once"),
        Example(f"{file}, line 4", text="upon\u2028a time"),
        Example(str(plain), text="some text\n"),
    ]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{", "line 1 is no JSON"),
        ("[1]", "line 1 has none of its keys"),
        ({"question": "?"}, "line 1 has none of its keys"),
        ({"prompt": "a", "text": "b"}, "line 1 has prompt and text"),
        ({"prompt": 3}, "line 1: prompt is no text: '3'"),
        ({"text": "  "}, "line 1: text is no text"),
        ({"messages": [{"role": "user"}]}, "line 1: a message is"),
        ({"messages": "hello"}, "line 1: messages holds nothing that is said to the assistant"),
        ({"messages": [ASSISTANT]}, "line 1: messages holds nothing that is said to the assistant"),
        ("", "holds nothing"),
    ],
)
def test_a_line_that_cannot_be_used_is_an_error_that_names_it_and_says_what_is_expected(
    entry: Any, said: str, tmp_path: Path
) -> None:
    file = lines(tmp_path, entry)
    with pytest.raises(InvalidRequest, match=re.escape(said)) as caught:
        read_examples([file])
    assert str(file) in str(caught.value) and "expected" in str(caught.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "image.txt"
    file.write_bytes(b"\xff\xd8\xff")
    with pytest.raises(InvalidRequest, match=r"image\.txt cannot be read as UTF-8"):
        read_examples([file])


def prompts_of(example: Example, tokenizer: Tokenizer, max_length: int = 64, *, as_written: bool = False) -> Any:
    return make_prompts([example], tokenizer, max_length, end=0, as_written=as_written)


def test_the_target_answers_a_conversation_in_the_place_of_the_answer_that_stands_there(tokenizer: Tokenizer) -> None:
    messages = tuple((each["role"], each["content"]) for each in (USER, ASSISTANT))
    asked = tokenizer.encode_chat(messages[:1])
    assert prompts_of(Example("", messages=messages), tokenizer).prompts == (Prompt(asked),)
    answer = (*tokenizer.encode_rendered(ASSISTANT["content"]), 0)
    written = prompts_of(Example("", messages=messages), tokenizer, as_written=True)
    assert written.prompts == (Prompt(asked, answer),)


def test_a_long_text_becomes_several_and_nothing_of_it_is_lost_but_what_is_told(tokenizer: Tokenizer) -> None:
    text = "for number in range(10): print(number)\n" * 20
    tokens = tokenizer.encode(text)
    made = prompts_of(Example("", text=text), tokenizer, max_length=48, as_written=True)
    last = len(tokens) % 48
    assert made.too_short == int(0 < last < 16) and made.too_long == made.cut == 0
    joined = [token for prompt in made.prompts for token in (*prompt.tokens, *prompt.answer)]
    assert joined == list(tokens[: len(joined)])
    assert len(tokens) - len(joined) == (last if last < 16 else 0)


def test_of_a_text_the_target_is_given_the_beginning_of_each_piece(tokenizer: Tokenizer) -> None:
    text = "for number in range(10): print(number)\n" * 60
    tokens = tokenizer.encode(text)
    made = prompts_of(Example("", text=text), tokenizer, max_length=200)
    assert made.prompts[0] == Prompt(tokens[:64])
    assert made.prompts[1] == Prompt(tokens[200:264])


def test_prompts_without_room_for_an_answer_and_answers_that_are_cut_are_counted(tokenizer: Tokenizer) -> None:
    long = "number " * 100
    assert prompts_of(Example("", prompt=long), tokenizer).too_long == 1
    asked = (("user", "hello"), ("assistant", long))
    made = prompts_of(Example("", messages=asked), tokenizer, as_written=True)
    assert made.cut == 1
    (prompt,) = made.prompts
    assert len(prompt.tokens) + len(prompt.answer) == 64


def test_what_has_no_answer_cannot_be_learnt_as_written(tokenizer: Tokenizer) -> None:
    for example in (Example("f, line 2", prompt="hello"), Example("f, line 2", messages=(("user", "hello"),))):
        with pytest.raises(InvalidRequest, match="--as-written: f, line 2"):
            prompts_of(example, tokenizer, as_written=True)


def test_a_conversation_needs_a_chat_template(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((POCKET / name).read_bytes())
    with pytest.raises(Unsupported, match="no chat template"):
        prompts_of(Example("", messages=(("user", "hello"),)), Tokenizer.load(tmp_path))
