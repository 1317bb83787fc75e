"""specsplit from Python.

```python
with Client("127.0.0.1:50050") as client:
    print(client.generate("def fib(n):", max_tokens=64).text)
```

Failures are the exceptions of `specsplit.errors`. A request that is sent while a span of OpenTelemetry is current belongs to its trace.
"""

from __future__ import annotations

from specsplit.client.asynchronous import AsyncClient
from specsplit.client.conversation import Conversation, Exchange
from specsplit.client.options import Options, Promptable, make_request
from specsplit.client.result import Result
from specsplit.client.synchronous import Client
from specsplit.requests import ChatMessage, ChatPrompt, Delta, Done, TextPrompt, TokenPrompt

__all__ = [
    "AsyncClient",
    "ChatMessage",
    "ChatPrompt",
    "Client",
    "Conversation",
    "Delta",
    "Done",
    "Exchange",
    "Options",
    "Promptable",
    "Result",
    "TextPrompt",
    "TokenPrompt",
    "make_request",
]
