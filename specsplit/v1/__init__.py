"""Generated from protos/specsplit/v1 by `make protos`; every other file here is overwritten by it."""
