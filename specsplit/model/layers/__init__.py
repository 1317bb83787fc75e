"""Decoder layers as they are served: replaced for a CPU, compiled, shared out, repeated, listened to.

It may import `attention`, `pages` and `tensors`.
Others use `replace_layers`, for a CPU; `sharded`, MLPs over ranks.
"""
