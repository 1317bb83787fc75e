"""specsplit: speculative decoding split into services."""

__version__ = "0.1.0"
