"""transformers' own `generate`."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.serving import Cannot, Prompts, Write, options, serve

TOKENS = 10


def load() -> Write:
    import torch  # noqa: PLC0415 (what takes long is part of the load)
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    asked = options()
    torch.set_num_threads(asked["threads"])
    model: Any = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    drafting = {"prompt_lookup_num_tokens": TOKENS} if asked["drafts"] else {}

    def write(prompts: Prompts, new: int) -> list[list[int]]:
        if drafting and len(prompts) > 1:
            raise Cannot("generate drafts for one text at a time")
        longest = max(map(len, prompts))
        rows = torch.tensor([[0] * (longest - len(each)) + list(each) for each in prompts])
        seen = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])
        out = model.generate(rows, attention_mask=seen, max_new_tokens=new, do_sample=False, **drafting)
        return out[:, longest:].tolist()

    return write


if __name__ == "__main__":
    serve(load)
