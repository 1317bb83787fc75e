"""Kernels for a CPU in C, compiled on the machine that they run on.

It may import `tensors`.
Others use `attention`, `weights`, `decoder`, `low_rank` and `uniforms`, what is computed and what it reads; `library`, whether there are
kernels.
"""
