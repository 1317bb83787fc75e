"""Who is in the cluster: verifiers and drafters as they report themselves, the channels to them, and the orders they are given.

It imports no other room.
Others use `Registry`, all of them; `MemberState`, one of them.
"""
