"""A Redis or Valkey server that keeps the counts of all coordinators: one connection, and one script that does a whole message at once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any, Final, cast
from uuid import uuid4

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from specsplit.errors import Unavailable, shortened
from specsplit.settings import CoordinatorSettings
from specsplit.settings.files import read_text
from specsplit_coordinator.requests.quota_ledger import Answer, Entry
from specsplit_coordinator.requests.quotas import Quota

SCRIPT: Final = files("specsplit_coordinator.requests").joinpath("quota.lua").read_text()
_SHA: Final = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

_MOST_BYTES: Final = 300
"""Of what the server says when it refuses, this much is passed on."""


class QuotaServer:
    """One coordinator's connection to the server. An answer that does not come leaves it closed."""

    def __init__(self, settings: CoordinatorSettings, quota: Quota, lease_s: float) -> None:
        """`lease_s`: for so long the counts of a coordinator stand that is not heard of.

        Raises InvalidRequest for a password file that cannot be read.
        """
        self._options = _options(settings)
        self._url = settings.quota_store
        self._prefix = settings.quota_store_prefix
        self._coordinators = f"{self._prefix}coordinators"
        self._me = uuid4().hex
        self._lease_ms = round(lease_s * 1000)
        bounds = (quota.requests, quota.queued, quota.tokens_per_minute)
        self._bounds = tuple(-1 if bound is None else bound for bound in bounds)
        self._redis: Redis | None = None

    @property
    def connected(self) -> bool:
        """True until something fails."""
        return self._redis is not None

    async def connect(self) -> None:
        """Connect, and let the server know the script. Raises Unavailable."""
        redis = cast("Redis", cast("Any", Redis).from_url(self._url, **self._options))
        try:
            await cast("Any", redis).script_load(SCRIPT)
        except BaseException as error:
            await _close(redis)
            if isinstance(error, (RedisError, OSError)):
                raise _unavailable(error) from error
            raise
        self._redis = redis

    async def tell(self, entries: Sequence[Entry], coordinators: int, *, renew: bool) -> tuple[int, bool, list[Answer]]:
        """Tell and ask in one step, and `renew` one's lease or not.

        Returns how many coordinators are known, whether the counts are those of all, and an answer to each entry. Raises Unavailable.
        """
        keys = [self._coordinators, *(self._key(entry.client) for entry in entries)]
        arguments: list[str | int] = [self._me, int(renew), self._lease_ms, coordinators, *self._bounds]
        for each in entries:
            arguments += [each.held, each.waiting, each.generation, each.used, each.acknowledged, len(each.asks)]
            arguments += [number for ask in each.asks for number in ask]
        exact, known, *answers = await self._run(keys, arguments)
        return known, bool(exact), [Answer(int(a[0]), int(a[1]), float(a[2]), tuple(a[3:])) for a in answers]

    async def leave(self) -> None:
        """Give one's lease up, and with it all counts. Raises Unavailable."""
        assert self._redis is not None, "connect comes first"
        try:
            await cast("Any", self._redis).hdel(self._coordinators, self._me)
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error

    async def disconnect(self) -> None:
        """Close the connection, if it is open."""
        redis, self._redis = self._redis, None
        if redis is not None:
            await _close(redis)

    async def _run(self, keys: Sequence[str], arguments: Sequence[str | int]) -> list[Any]:
        assert self._redis is not None, "connect comes first"
        redis = cast("Any", self._redis)
        try:
            try:
                return await redis.evalsha(_SHA, len(keys), *keys, *arguments)
            except NoScriptError:  # it was started again, or somebody told it to forget
                return await redis.eval(SCRIPT, len(keys), *keys, *arguments)
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error

    def _key(self, client: str) -> str:
        """The key of a client, which does not show its name."""
        return f"{self._prefix}client:{hashlib.sha256(client.encode(errors='surrogatepass')).hexdigest()}"


def _options(settings: CoordinatorSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "protocol": 2,
        "decode_responses": True,
        "single_connection_client": True,
        "retry": Retry(NoBackoff(), 0),  # a request waits for what is tried: the next message tells the same again
        "socket_timeout": None,
        "socket_connect_timeout": None,
        "client_name": "specsplit-coordinator",
    }
    if settings.quota_store_password_file is not None:
        options["password"] = read_text("quota_store_password_file", settings.quota_store_password_file).strip()
    return options | (_tls(settings) if settings.quota_store.startswith("rediss:") else {})


def _tls(settings: CoordinatorSettings) -> dict[str, Any]:
    """Which authority the server is checked against, beside the system's, and what it is shown if it asks."""
    files = {
        "ssl_ca_certs": settings.tls_ca,
        "ssl_certfile": settings.tls_cert,
        "ssl_keyfile": settings.tls_key,
    }
    return {name: str(file) for name, file in files.items() if file is not None}


async def _close(redis: Redis) -> None:
    with suppress(RedisError, OSError):
        await cast("Any", redis).aclose()


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(shortened(f"{type(error).__name__}: {error}", _MOST_BYTES))
