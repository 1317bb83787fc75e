"""Tree attention over paged KV by Triton kernels of our own. `forward` and `kernels` import triton: `attention` does so where they run."""
