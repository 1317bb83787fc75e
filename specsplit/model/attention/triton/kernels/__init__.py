"""Triton's functions of this backend. Imported only where they run."""
