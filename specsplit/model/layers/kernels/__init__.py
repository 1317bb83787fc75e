"""Triton kernels over the KV of a model. As those of `specsplit.sampling.kernels`, they are imported only where they run."""
