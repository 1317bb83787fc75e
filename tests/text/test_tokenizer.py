"""The pocket tokenizer and small hand-made ones: what goes in comes out, whole characters at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest, LoadError, Unsupported
from specsplit.text.chat import ChatTemplate
from specsplit.text.detokenizer import Detokenizer, WindowDetokenizer
from specsplit.text.tokenizer import Tokenizer

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
REPLACEMENT = "\ufffd"
PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
"""An added token that is found wherever it stands."""


@pytest.fixture(scope="module")
def pocket() -> Tokenizer:
    return Tokenizer.load(POCKET)


def stream(detokenizer: Detokenizer, tokens: tuple[int, ...] | list[int]) -> list[str]:
    return [*(detokenizer.feed((token,)) for token in tokens), detokenizer.flush()]


def write_folder(folder: Path, inner: dict[str, Any], vocab_size: int, config: dict[str, Any] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps({"vocab_size": vocab_size}))
    (folder / "tokenizer.json").write_text(json.dumps(inner))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


WORDS = {"▁the": 0, "▁cat": 1, "▁": 2}
SPECIAL = len(WORDS) + 256


def tokens_of(text: str) -> list[int]:
    """Tokens of `byte_fallback` for any text: spaces are ▁, everything else its bytes."""
    pieces = (([WORDS["▁"]] if c == " " else [len(WORDS) + byte for byte in c.encode()]) for c in text)
    return [token for piece in pieces for token in piece]


@pytest.fixture(scope="module")
def fallbacks(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Tokenizer]:
    return {prefix: byte_fallback(tmp_path_factory.mktemp("fallback"), prefix) for prefix in (False, True)}


def byte_fallback(folder: Path, with_prefix: bool = True, special: tuple[str, ...] = ()) -> Tokenizer:
    """A SentencePiece-like tokenizer: words with ▁, every other byte a token of its own."""
    vocab = WORDS | {f"<0x{byte:02X}>": len(WORDS) + byte for byte in range(256)}
    added = [{"id": SPECIAL + i, "content": content, "special": True, **PLAIN} for i, content in enumerate(special)]
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if with_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    inner = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True, "unk_token": None},
    }
    return Tokenizer.load(write_folder(folder, inner, len(vocab) + len(added)))


@given(text=st.text(max_size=60))
@example("déjà vu — 你好 👩‍👩‍👧 \U0001f600")
def test_text_survives_the_way_there_and_back(text: str) -> None:
    pocket = Tokenizer.load(POCKET)
    assert "".join(stream(pocket.detokenizer(), pocket.encode(text))) == text


@given(tokens=st.lists(st.integers(0, 2047), max_size=60))
def test_streamed_text_equals_decoding_all_tokens_at_once(tokens: list[int]) -> None:
    pocket = Tokenizer.load(POCKET)
    assert "".join(stream(pocket.detokenizer(), tokens)) == pocket.decode(tokens)


def test_no_piece_ever_holds_half_a_character(pocket: Tokenizer) -> None:
    tokens = pocket.encode("print('你好 👩‍👩‍👧 é')")
    assert all(REPLACEMENT not in piece for piece in stream(pocket.detokenizer(), tokens))


def test_what_never_became_a_character_comes_out_at_the_end_as_decoding_writes_it(pocket: Tokenizer) -> None:
    tokens = pocket.encode("a你")[:-1]
    pieces = stream(pocket.detokenizer(), tokens)
    assert all(REPLACEMENT not in piece for piece in pieces[:-1])
    assert "".join(pieces) == pocket.decode(tokens)


def test_special_tokens_are_not_text(pocket: Tokenizer) -> None:
    assert "".join(stream(pocket.detokenizer(), [0, *pocket.encode("x = 1"), 0])) == "x = 1"


def test_ids_that_only_pad_the_vocabulary_are_not_text(pocket: Tokenizer) -> None:
    assert "".join(stream(pocket.detokenizer(), [5000])) == ""


def test_a_sentencepiece_output_keeps_the_space_after_the_prompt(tmp_path: Path) -> None:
    tokenizer = byte_fallback(tmp_path)
    assert "".join(stream(tokenizer.detokenizer(), [0, 1])) == "the cat"
    assert "".join(stream(tokenizer.detokenizer(context=[0]), [1, 0, 1])) == " cat the cat"


def test_a_character_spread_over_byte_tokens_comes_out_whole(tmp_path: Path) -> None:
    tokenizer = byte_fallback(tmp_path)
    bytes_as_tokens = [3 + byte for byte in "你é".encode()]
    pieces = stream(tokenizer.detokenizer(), [0, *bytes_as_tokens, 1])
    assert pieces == ["the", "", "", "你", "", "é", " cat", ""]


# Text that no decoder could have made of broken bytes: a U+FFFD of its own cannot be told from one.
characters = st.one_of(
    st.characters(codec="utf-8", exclude_characters="\ufffd"), st.sampled_from("😀🎉你好éüñ \u2581a")
)


@given(before=st.text(characters, max_size=12), text=st.text(characters, max_size=40), with_prefix=st.booleans())
@example(before="", text="😀🎉👩‍👩‍👧你好 déjà vu", with_prefix=True)
@example(before="éé你好😀", text="😀 é", with_prefix=True)
def test_byte_fallback_text_streams_as_it_decodes(
    fallbacks: dict[bool, Tokenizer], before: str, text: str, with_prefix: bool
) -> None:
    tokenizer = fallbacks[with_prefix]
    context, tokens = tokens_of(before), tokens_of(text)
    pieces = stream(tokenizer.detokenizer(context), tokens)
    assert "".join(pieces) == tokenizer.decode([*context, *tokens])[len(tokenizer.decode(context)) :]
    assert not any(REPLACEMENT in piece for piece in pieces)


def test_special_tokens_between_the_bytes_of_two_characters_cut_neither(tmp_path: Path) -> None:
    tokenizer = byte_fallback(tmp_path, special=("<s>",))
    tokens = [*tokens_of("é"), *[SPECIAL] * 5, *tokens_of("😀")]
    assert "".join(stream(tokenizer.detokenizer(), tokens)) == tokenizer.decode(tokens) == "é😀"


def metaspace(folder: Path) -> Tokenizer:
    """As T5's and older Llama's: words with ▁, whose first space the decoder leaves out; an added token; and special ones."""
    vocab = {"▁the": 0, "▁cat": 1, "▁": 2, "s": 3, "é": 4}
    added = [
        {"id": 5 + i, "content": content, "special": special, **PLAIN}
        for i, (content, special) in enumerate((("<s>", True), ("</s>", True), ("<tool>", False)))
    ]
    inner = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": None},
    }
    return Tokenizer.load(write_folder(folder, inner, len(vocab) + len(added)))


def with_silent_words(folder: Path) -> Tokenizer:
    """A byte-fallback tokenizer whose decoder writes nothing for a token that is not special."""
    tokenizer = byte_fallback(folder, special=("<s>",))
    inner = json.loads((folder / "tokenizer.json").read_text())
    inner["decoder"]["decoders"].insert(0, {"type": "Replace", "pattern": {"String": "▁cat"}, "content": ""})
    return Tokenizer.load(write_folder(folder, inner, tokenizer.vocabulary.size))


def test_a_space_behind_tokens_that_the_decoder_writes_nothing_for_is_written(tmp_path: Path) -> None:
    tokenizer = with_silent_words(tmp_path)
    before, space = [*tokens_of("a"), *[WORDS["▁cat"]] * 99], tokens_of(" ")
    assert stream(tokenizer.detokenizer(before), space) == [" ", ""]


class Kind(NamedTuple):
    """A tokenizer, tokens of whole characters, and tokens of which no text comes."""

    tokenizer: Tokenizer
    words: Sequence[Sequence[int]]
    silent: Sequence[int]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    made, two = tmp_path_factory.mktemp, ("<s>", "</s>")
    characters, pocket = [tokens_of(each) for each in "aé你😀 "], Tokenizer.load(POCKET)
    special = [SPECIAL, SPECIAL + 1, SPECIAL + 2]
    return {
        "byte-level": Kind(pocket, [pocket.encode(each) for each in "aé你😀 "], [0, 5000]),
        "byte fallback": Kind(byte_fallback(made("plain"), with_prefix=False, special=two), characters, special),
        "a space before": Kind(byte_fallback(made("prefixed"), special=two), characters, special),
        "metaspace": Kind(metaspace(made("metaspace")), [[token] for token in (0, 1, 2, 3, 4, 7)], [5, 6, 8]),
        "silent words": Kind(with_silent_words(made("silent")), characters, [WORDS["▁cat"], SPECIAL]),
    }


@given(data=st.data())
def test_text_streams_as_it_decodes_whatever_without_text_stands_between(
    kinds: dict[str, Kind], data: st.DataObject
) -> None:
    tokenizer, words, silent = kinds[data.draw(st.sampled_from(sorted(kinds)))]
    parts = st.lists(st.one_of(st.lists(st.sampled_from(silent), max_size=12), st.sampled_from(words)), max_size=8)
    before, output = ([token for part in data.draw(parts) for token in part] for _ in range(2))
    pieces = stream(tokenizer.detokenizer(before), output)
    assert "".join(pieces) == tokenizer.decode([*before, *output])[len(tokenizer.decode(before)) :]


@given(data=st.data())
def test_tokens_give_the_same_text_however_many_come_at_once(kinds: dict[str, Kind], data: st.DataObject) -> None:
    """Broken characters too, and what has become text by the end of each burst is what it would be one by one."""
    tokenizer, words, silent = kinds[data.draw(st.sampled_from(sorted(kinds)))]
    every = st.integers(0, tokenizer.vocabulary.size - 1).map(lambda token: [token])
    parts = st.lists(
        st.one_of(st.sampled_from(words), st.lists(st.sampled_from(silent), max_size=3), every), max_size=12
    )
    before, output = ([token for part in data.draw(parts) for token in part] for _ in range(2))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=8)))
    single, several = tokenizer.detokenizer(before), tokenizer.detokenizer(before)
    for begin, end in pairwise([0, *cuts, len(output)]):
        other, burst = several.copy(), output[begin:end]
        text = several.feed(burst)
        assert text == "".join(single.feed((token,)) for token in burst)
        assert other.feed(burst) == text, "a copy goes on from the same place"
    assert several.flush() == single.flush()


@pytest.mark.parametrize("kind", ["byte fallback", "a space before", "metaspace", "silent words"])
def test_tokens_without_text_cost_no_more_however_many_they_are(kinds: dict[str, Kind], kind: str) -> None:
    tokenizer, words, silent = kinds[kind]
    handed: list[int] = []

    def decode(tokens: Sequence[int]) -> str:
        handed.append(len(tokens))
        return tokenizer.decode(tokens)

    word = words[0]
    for token in silent:  # also where nobody says which tokens are no text
        detokenizer = WindowDetokenizer(decode, [*word, *word])
        assert (
            "".join(stream(detokenizer, [*[token] * 2_000, *word]))
            == tokenizer.decode([*word] * 3)[len(tokenizer.decode([*word] * 2)) :]
        )
    assert max(handed) <= 20, "the window is bounded in tokens"


def test_bytes_that_are_no_character_do_not_hold_the_output_back_for_ever(tmp_path: Path) -> None:
    tokenizer = byte_fallback(tmp_path)
    pieces = stream(tokenizer.detokenizer(), [3 + 0xFF] * 8)
    assert any(pieces[:5])


def test_an_added_token_with_characters_outside_the_byte_alphabet_is_written_as_it_is(tmp_path: Path) -> None:
    inner = json.loads((POCKET / "tokenizer.json").read_text())
    for token, content in ((2048, "→ 你"), (2049, "plain")):
        inner["added_tokens"].append({"id": token, "content": content, "special": False, **PLAIN})
    tokenizer = Tokenizer.load(write_folder(tmp_path, inner, 2050))
    assert "".join(stream(tokenizer.detokenizer(), [2048, 2049])) == tokenizer.decode([2048, 2049]) == "→ 你plain"


def test_chat_is_rendered_with_the_folders_template(pocket: Tokenizer) -> None:
    tokens = pocket.encode_chat([("user", "add two numbers")])
    assert pocket.decode(tokens) == "# add two numbers\n"


def test_a_template_sees_special_tokens_the_generation_prompt_and_the_date(tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}"
        "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant {{ strftime_now('%Y') }}]{% endif %}"
    )
    inner = json.loads((POCKET / "tokenizer.json").read_text())
    config = {"chat_template": [{"name": "default", "template": template}], "bos_token": {"content": "BOS"}}
    tokenizer = Tokenizer.load(write_folder(tmp_path, inner, 2048, config), now=lambda: datetime(2031, 1, 2))
    assert tokenizer.decode(tokenizer.encode_chat([("user", "hi")])) == "BOS[user]hi[assistant 2031]"
    with pytest.raises(InvalidRequest, match="no tools"):
        tokenizer.encode_chat([("tool", "hi")])
    with pytest.raises(InvalidRequest, match=r"chat\.messages: is empty"):
        tokenizer.encode_chat([])


@pytest.mark.parametrize("template", ["{{ messages[0].content + 1 }}", "{{ 1 // 0 }}", "{{ messages[7].content.x }}"])
def test_a_template_that_fails_in_its_own_way_refuses_the_messages(template: str) -> None:
    with pytest.raises(InvalidRequest, match=r"chat\.messages: the model's chat template"):
        ChatTemplate(template, {}).render([("user", "hi")])


def test_chat_without_a_template_is_unsupported_and_a_broken_template_is_a_load_error(tmp_path: Path) -> None:
    inner = json.loads((POCKET / "tokenizer.json").read_text())
    folder = write_folder(tmp_path, inner, 2048)
    tokenizer = Tokenizer.load(folder)
    assert not tokenizer.takes_chat
    with pytest.raises(Unsupported, match="no chat template"):
        tokenizer.encode_chat([("user", "hi")])
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(LoadError, match="chat template"):
        Tokenizer.load(folder)


def test_a_file_that_is_no_tokenizer_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="is not a tokenizer"):
        Tokenizer.load(write_folder(tmp_path, {"model": {"vocab": {}}, "added_tokens": []}, 2))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(LoadError, match=r"has no tokenizer: expected tokenizer\.json or tekken\.json"):
        Tokenizer.load(tmp_path)


def test_a_lone_surrogate_is_refused_by_name(pocket: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        pocket.encode("a\ud800")


def test_the_library_reads_the_pocket_tokenizer_the_same_way(pocket: Tokenizer) -> None:
    text = "def read(self, size=-1):\n    return self._buffer.read(size)\n"
    assert list(pocket.encode(text)) == tokenizers.Tokenizer.from_file(str(POCKET / "tokenizer.json")).encode(text).ids
