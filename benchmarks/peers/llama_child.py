"""llama.cpp by llama-cpp-python. Its own loop writes one text at a time; several at once share the calls of its C interface."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from itertools import islice
from typing import Any

from benchmarks.peers.serving import Cannot, Prompts, Write, options, serve

CONTEXT = 1024
"""Tokens of a text at most."""
TOKENS = 2
"""Drafted tokens; its manual says so for a CPU."""
_AT_ONCE = 8
_FLOAT32 = 0
"""How keys and values are kept, by its number."""


def load() -> Write:
    asked = options()
    return (
        _drafting(asked["model"], asked["threads"]) if asked["drafts"] else _Batches(asked["model"], asked["threads"])
    )


def _drafting(model: str, threads: int) -> Write:
    lib: Any = importlib.import_module("llama_cpp")
    drafter = importlib.import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding(num_pred_tokens=TOKENS)
    how = {"n_threads": threads, "n_threads_batch": threads, "type_k": _FLOAT32, "type_v": _FLOAT32}
    llama = lib.Llama(model, n_ctx=CONTEXT, draft_model=drafter, verbose=False, **how)

    def write(prompts: Prompts, new: int) -> list[list[int]]:
        if len(prompts) > 1:
            raise Cannot("llama-cpp-python drafts for one text at a time")
        llama.reset()
        tokens = llama.generate(list(prompts[0]), temp=0.0, repeat_penalty=1.0)
        return [[int(token) for token in islice(tokens, new)]]

    return write


class _Batches:
    """Prompts are read one after the other; then each call makes a token of every text."""

    def __init__(self, model: str, threads: int) -> None:
        self._lib: Any = importlib.import_module("llama_cpp")
        self._numpy: Any = importlib.import_module("numpy")
        lib = self._lib
        how = lib.llama_context_default_params()
        how.n_ctx, how.n_batch, how.n_seq_max, how.kv_unified = CONTEXT * _AT_ONCE, CONTEXT, _AT_ONCE, True
        how.n_threads = how.n_threads_batch = threads
        how.type_k = how.type_v = _FLOAT32
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
        self._context = lib.llama_init_from_model(self._model, how)
        self._width: int = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._batch = lib.llama_batch_init(CONTEXT, 0, 1)

    def __call__(self, prompts: Prompts, new: int) -> list[list[int]]:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        texts: list[list[int]] = []
        for number, prompt in enumerate(prompts):
            last = len(prompt) - 1
            self._run((token, place, number, place == last) for place, token in enumerate(prompt))
            texts.append([self._said(last)])
        for step in range(new - 1):
            self._run((text[-1], len(prompts[number]) + step, number, True) for number, text in enumerate(texts))
            for number, text in enumerate(texts):
                text.append(self._said(number))
        return texts

    def _run(self, entries: Iterable[tuple[int, int, int, bool]]) -> None:
        """Call once with these: token, position, number of the text, and whether what follows is wanted."""
        batch, count = self._batch, 0
        for token, place, sequence, wanted in entries:
            batch.token[count], batch.pos[count], batch.n_seq_id[count], batch.seq_id[count][0] = (
                token,
                place,
                1,
                sequence,
            )
            batch.logits[count] = wanted
            count += 1
        batch.n_tokens = count
        if self._lib.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")

    def _said(self, index: int) -> int:
        logits = self._lib.llama_get_logits_ith(self._context, index)
        return int(self._numpy.ctypeslib.as_array(logits, (self._width,)).argmax())


if __name__ == "__main__":
    serve(load)
