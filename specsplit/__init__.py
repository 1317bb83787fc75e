"""specsplit: speculative decoding split into services."""

import os

__version__ = "0.1.0"

# gRPC's notes hold what peers send, newlines and all, so any of them could write a line into our logs. It reads this once, when it is
# imported; who wants its notes sets it to something else.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
