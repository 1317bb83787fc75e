"""What specsplit costs and gains, measured: `python -m benchmarks --help`."""
