"""A causal language model out of a folder, checked, and served from pages.

It may import `adapters`, `ranks`, `graphs`, `layers`, `attention`, `pages` and `tensors`.
Others use `CausalLM`; `SplitLM`, one over several processes; `load_model`.
"""
