"""A SentencePiece tokenizer.model of the Llama family as the tokenizer.json that transformers makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import unpack
from typing import Any, Final, NamedTuple, cast

from specsplit.errors import LoadError
from specsplit.text.byte_level import merges_of
from specsplit.text.json_file import read_json
from specsplit.text.tekken import added

CLASSES: Final = ("LlamaTokenizer", "LlamaTokenizerFast")
"""Tokenizers of tokenizer_config.json that are converted; what others do with the same file is their own."""
_BPE: Final = 2
_CONTROL, _USER_DEFINED = 3, 4
"""Kinds of pieces that are found before all others; the first are no text."""
_NAMED: Final = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None}


class _Piece(NamedTuple):
    text: str
    kind: int


def from_sentencepiece(path: Path, config: dict[str, Any], *, merges: bool) -> dict[str, Any]:
    """The object that a tokenizer.json would hold. config: what tokenizer_config.json says. merges: whether with the merges.

    Raises LoadError, naming the file, if it is no SentencePiece model, or none of pairs that are merged.
    """
    try:
        pieces, kind = _read(path.read_bytes())
    except (OSError, ValueError, IndexError) as error:
        raise LoadError(f"{path} is no SentencePiece model: {error}") from error
    if kind != _BPE or not pieces:
        raise LoadError(f"{path} is no SentencePiece model of merged pairs (BPE), which a {CLASSES[0]} has")
    vocab = {piece.text: index for index, piece in enumerate(pieces)}
    try:
        tokens = _added(pieces, vocab, config)
        ends = _ends(config, {token["content"]: token["id"] for token in tokens})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LoadError(
            f"{path.with_name('tokenizer_config.json')} names tokens in no way that can be read: {error!r}"
        ) from error
    prefix = config.get("add_prefix_space") is not False
    scheme = "never" if not prefix else "always" if config.get("legacy") else "first"
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {
        "version": "1.0",
        "added_tokens": tokens,
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False},
        "post_processor": ends,
        "decoder": {
            "type": "Sequence",
            "decoders": decoders + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * prefix,
        },
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": [list(pair) for pair in merges_of(vocab, by_length=True)] if merges else [],
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


def _added(pieces: list[_Piece], vocab: dict[str, int], config: dict[str, Any]) -> list[dict[str, Any]]:
    """The added tokens: those that the config lists, those that it names, and the model's own; new ones have the next ids.

    The model's own are left out where the config names further special tokens, as transformers does.
    """
    listed = cast("dict[str, dict[str, Any]]", config.get("added_tokens_decoder") or {})
    found: dict[str, dict[str, Any]] = {}
    for _, entry in sorted(listed.items(), key=lambda each: int(each[0])):
        text = str(entry["content"])
        found[text] = {**added(0, text, special=False), **entry}
    further = cast("list[object]", config.get("additional_special_tokens") or [])
    named = [config.get(name, usual) for name, usual in _NAMED.items()]
    for text in map(_text, (*named, *further)):
        if text is not None:
            found.setdefault(text, added(0, text, special=True))
    for piece in () if further else pieces:
        if piece.kind in (_CONTROL, _USER_DEFINED):
            found.setdefault(piece.text, added(0, piece.text, special=piece.kind == _CONTROL))
    known = dict(vocab)
    return [{**token, "id": known.setdefault(text, len(known))} for text, token in found.items()]


def _text(token: object) -> str | None:
    if isinstance(token, dict):
        token = cast("dict[str, object]", token).get("content")
    return token if isinstance(token, str) else None


def _stated(config: dict[str, Any], name: str) -> str:
    """The text of a special token. Raises ValueError if the config says that there is none."""
    text = _text(config.get(name, _NAMED[name]))
    if text is None:
        raise ValueError(f"it adds a {name} to texts, and names none")
    return text


def _ends(config: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    """The post-processor: what stands before and behind a text, if the config says that something does."""
    first = [_stated(config, "bos_token")] if config.get("add_bos_token") else []
    last = [_stated(config, "eos_token")] if config.get("add_eos_token") else []

    def around(sequence: str, kind: int) -> list[dict[str, Any]]:
        before, behind = (
            [{"SpecialToken": {"id": text, "type_id": kind}} for text in texts] for texts in (first, last)
        )
        return [*before, {"Sequence": {"id": sequence, "type_id": kind}}, *behind]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {
            text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in (*first, *last) if text
        },
    }


def _read(model: bytes) -> tuple[list[_Piece], int]:
    """The pieces of a SentencePiece model, in the order of their ids, and its kind (1: unigram, 2: BPE). Raises ValueError, IndexError."""
    pieces: list[_Piece] = []
    kind = 1
    for field, value in _fields(model):
        if field == 1 and isinstance(value, bytes):
            facts = dict(_fields(value))
            text = facts.get(1, b"")
            pieces.append(_Piece(text.decode() if isinstance(text, bytes) else "", int(facts.get(3, 1))))
        elif field == 2 and isinstance(value, bytes):
            kind = int(dict(_fields(value)).get(3, 1))
    return pieces, kind


def _fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Numbers and values of a protobuf message's fields, as they come. Raises ValueError and IndexError for what is none."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        match tag & 7:
            case 0:
                value, at = _varint(message, at)
            case 1:
                (value,), at = unpack("<d", message[at : at + 8]), at + 8
            case 2:
                length, at = _varint(message, at)
                if at + length > len(message):
                    raise ValueError("it is cut short")
                value, at = message[at : at + length], at + length
            case 5:
                (value,), at = unpack("<f", message[at : at + 4]), at + 4
            case other:
                raise ValueError(f"a field of kind {other} at byte {at}")
        yield tag >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of protobuf's and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def read_config(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json says; nothing, if there is none. Raises LoadError if it cannot be read."""
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.exists() else {}
