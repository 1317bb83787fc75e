"""The backend by FlashInfer's kernels, on a GPU."""
