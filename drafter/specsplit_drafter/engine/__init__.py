"""The thread that drafts: events in, grows out, one expansion at a time.

It may import `growth`, `kinds`, `descent` and `drafts`.
Others use `Engine`, the thread; `SessionTable`, what it does without threads.
"""
