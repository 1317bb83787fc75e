"""A verifier behind its own server, whose sessions another process reads over gRPC."""
