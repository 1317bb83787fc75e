"""The engine protocol of vLLM, in which gateways speak to us: one servicer for every service that generates."""
