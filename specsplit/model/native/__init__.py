"""Kernels for a CPU in C, compiled on the machine that they run on.

It may import `tensors`.
Others use `attention`, the kernel and what it reads; `library`, whether there is one.
"""
