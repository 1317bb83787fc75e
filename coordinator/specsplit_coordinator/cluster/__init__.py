"""Who serves whom: which verifier takes a request, and which drafters draft for it.

It may import `members`.
Others use `placement`, which verifier takes a request; `Rosters`, which drafters a verifier has; `JoinStream`, one member's stay.
"""
