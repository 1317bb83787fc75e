"""specsplit: speculative decoding split into services."""

import os

__version__ = "0.1.0"

# gRPC's notes hold what peers send, newlines and all, so any of them could write a line into our logs. It reads this once, when it is
# imported; who wants its notes sets it to something else. Its errors are none of ours either: each one is an exception too, and a line
# that is no JSON breaks a log of JSON.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
