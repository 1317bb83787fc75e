"""vLLM for a CPU."""

from __future__ import annotations

import importlib
import os
from typing import Any

from benchmarks.peers.serving import Prompts, Write, options, serve

TOKENS = 10
LOOKUP = (2, 4)
_GIB = 2
"""Room for keys and values."""


def load() -> Write:
    asked = options()
    cores = sorted(os.sched_getaffinity(0))[: asked["threads"]]
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    vllm: Any = importlib.import_module("vllm")
    lookup = {"prompt_lookup_min": LOOKUP[0], "prompt_lookup_max": LOOKUP[1]}
    drafting = {"speculative_config": {"method": "ngram", "num_speculative_tokens": TOKENS, **lookup}}
    llm = vllm.LLM(
        asked["model"], dtype="float32", max_model_len=2048, max_num_seqs=8, enable_prefix_caching=False, skip_tokenizer_init=True,
        **(drafting if asked["drafts"] else {}),
    )  # fmt: skip

    def write(prompts: Prompts, new: int) -> list[list[int]]:
        how = vllm.SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        done = llm.generate([{"prompt_token_ids": list(each)} for each in prompts], how, use_tqdm=False)
        return [list(each.outputs[0].token_ids) for each in done]

    return write


if __name__ == "__main__":
    serve(load)
