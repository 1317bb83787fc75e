"""One request from admission to its last token: queues, quotas, its runs on verifiers, and what is told of it.

It may import `cluster` and `members`.
Others use `Admission`, who may begin; `Generator`, which answers a call; `Run`, one choice on one verifier after the other.
"""
