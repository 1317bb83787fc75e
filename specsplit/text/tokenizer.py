"""The tokenizer of a model folder, through the `tokenizers` library: all that a server needs of transformers' one, without transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import tokenizers

from specsplit.errors import InvalidRequest, LoadError
from specsplit.text.byte_level import BYTE_OF
from specsplit.text.chat import ChatTemplate, require_template
from specsplit.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from specsplit.text.tokenizer_file import TOKENIZER, file_of, missing, tokenizer_facts
from specsplit.text.vocabulary import vocabulary_of
from specsplit.values import Vocabulary


class Tokenizer:
    """Turns text into token ids and back, for one model."""

    def __init__(
        self,
        model: str,
        vocabulary: Vocabulary,
        inner: tokenizers.Tokenizer,
        byte_level: bool,
        template: ChatTemplate | None,
    ) -> None:
        self.model = model
        self.vocabulary = vocabulary
        """Size and digest of the table."""
        self._inner = inner
        self._template = template
        self._special = frozenset(token for token, added in inner.get_added_tokens_decoder().items() if added.special)
        self._writes: dict[int, bool] = {}
        """Whether `decode` writes something for a token, by those that were asked for."""
        self._byte_table = _ByteTable(inner, self._special) if byte_level else None
        self.longest_token = max(map(len, inner.get_vocab(with_added_tokens=True)), default=1)
        """Characters of the longest token as the table spells it (a byte-level one writes one for each byte).

        No text of more than n times as many characters fits into n tokens, as far as the tokenizer leaves no characters out.
        """

    @property
    def takes_chat(self) -> bool:
        """True if the model has a chat template."""
        return self._template is not None

    @classmethod
    def load(cls, folder: Path, now: Callable[[], datetime] = datetime.now) -> Tokenizer:
        """Read tokenizer.json or tekken.json, config.json and the chat template, if there is one. Raises LoadError, naming the file."""
        vocabulary, facts = vocabulary_of(folder), tokenizer_facts(folder)
        if facts is None:
            raise missing(folder)
        try:
            inner = _inner(folder / TOKENIZER, facts)
        except Exception as error:  # the library raises bare Exception for a malformed file
            raise LoadError(f"{file_of(folder)} is not a tokenizer: {error}") from error
        inner.no_padding()
        inner.no_truncation()
        return cls(folder.name, vocabulary, inner, _is_byte_level(facts.get("decoder")), ChatTemplate.load(folder, now))

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text, with the tokens that the model expects around one (its beginning-of-text token, say)."""
        return self._ids(_encodable("text", text), add_special_tokens=True)

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> tuple[int, ...]:
        """Token ids of (role, content) messages under the chat template; see `render_chat`."""
        return self.encode_rendered(self.render_chat(messages))

    def render_chat(self, messages: Sequence[tuple[str, str]]) -> str:
        """The text that the chat template makes of (role, content) messages.

        Raises Unsupported if the model has no template, InvalidRequest if the template refuses the messages.
        """
        return _encodable("chat.messages", require_template(self._template, self.model).render(messages))

    def encode_rendered(self, text: str) -> tuple[int, ...]:
        """Token ids of a text that a chat template has written, special tokens included."""
        return self._ids(text, add_special_tokens=False)

    def _ids(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        # The batch call alone lets other threads run meanwhile.
        (encoding,) = self._inner.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return tuple(encoding.ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn token ids into text; special tokens are left out."""
        return self._inner.decode(list(tokens), skip_special_tokens=True)

    def piece(self, token: int) -> str:
        """Text of one token by itself, for people to read: special tokens by name, bytes that are no whole character as U+FFFD."""
        if self._byte_table is not None and (known := self._byte_table(token)):
            return known.decode("utf-8", errors="replace")
        return (self._inner.id_to_token(token) or f"<{token}>").replace("\u2581", " ")

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        """A fresh incremental detokeniser for output that follows the tokens in `context`."""
        if self._byte_table is not None:
            return ByteDetokenizer(self._byte_table)
        return WindowDetokenizer(self.decode, context, self._is_text)

    def _is_text(self, token: int) -> bool:
        """False for what `decode` leaves out: special tokens, ids that only pad the vocabulary, and tokens for which it writes nothing.

        Two of each are asked for, since a decoder may leave out the space with which a text begins.
        """
        if token not in self._writes:
            shown = token not in self._special and self._inner.id_to_token(token) is not None
            self._writes[token] = shown and self.decode([token, token]) != ""
        return self._writes[token]


def _inner(path: Path, facts: dict[str, Any]) -> tokenizers.Tokenizer:
    """The library's tokenizer of a file, or of what was made in its place."""
    return (
        tokenizers.Tokenizer.from_file(str(path)) if path.exists() else tokenizers.Tokenizer.from_str(json.dumps(facts))
    )


def _encodable(field: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            field, f"holds a lone surrogate at character {error.start}, expected valid Unicode"
        ) from error
    return text


def _is_byte_level(decoder: object) -> bool:
    """True for a ByteLevel decoder, alone or as the only one of a sequence."""
    if not isinstance(decoder, dict):
        return False
    facts = cast("dict[str, Any]", decoder)
    if facts.get("type") == "Sequence":
        parts = cast("list[object]", facts.get("decoders") or [])
        return len(parts) == 1 and _is_byte_level(parts[0])
    return facts.get("type") == "ByteLevel"


class _ByteTable:
    """Bytes of each token of a byte-level tokenizer, worked out when first asked for."""

    def __init__(self, inner: tokenizers.Tokenizer, special: frozenset[int]) -> None:
        self._inner = inner
        self._special = special
        self._known: dict[int, bytes] = {}

    def __call__(self, token: int) -> bytes:
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._work_out(token)
        return found

    def _work_out(self, token: int) -> bytes:
        text = None if token in self._special else self._inner.id_to_token(token)
        if text is None:  # special tokens are not text; ids that pad the vocabulary have none
            return b""
        if all(character in BYTE_OF for character in text):
            return bytes(BYTE_OF[character] for character in text)
        return text.encode()  # an added token, written as it is
