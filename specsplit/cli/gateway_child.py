"""`python -m specsplit.cli.gateway_child ...`: as `smg launch`, but it leaves when stdin ends."""

from __future__ import annotations

from importlib import import_module

from specsplit.cli.parent import leave_with_stdin

if __name__ == "__main__":
    leave_with_stdin()
    import_module("smg.launch_router").main()
