"""A trigger that reads a Redis stream: `messages = redis_stream("orders", url="redis://…")`.

The cursor is the id of the last entry that was taken, kept with the run: no consumer group is needed, and nothing is lost or
taken twice whatever becomes of the connection.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from perdure.graph.declare import NodeDecorator, Stream
from perdure.graph.model import REDIS_STREAM
from perdure.graph.triggers import Trigger, TriggerInput, require_no_problems

log = logging.getLogger("perdure.nodes")

BLOCK_MS = 2_000
RETRY_SECONDS = 1.0
PER_READ = 100
SCHEMES = ("redis://", "rediss://", "unix://")


class RedisStream(Trigger[str, dict[str, str]]):
    """Reads the entries of a stream, one after the other."""

    key: str
    url: str = "redis://localhost:6379"
    start: str = "beginning"

    async def inputs(self, ctx: Any, cursor: str | None) -> AsyncIterator[TriggerInput[str, dict[str, str]]]:
        # Only who reads from Redis needs it.
        import redis.asyncio as asynchronous

        library: Any = asynchronous
        # What is no text is spelt out: one such entry must not be the end of all others.
        client = library.Redis.from_url(self.url, decode_responses=True, encoding_errors="backslashreplace")
        try:
            last = cursor if cursor is not None else await ctx.step(self._beginning, client)
            while True:
                read = functools.partial(client.xread, {self.key: last}, count=PER_READ, block=BLOCK_MS)
                found = await self._answer(read)
                for _, entries in found:
                    for last, fields in entries:
                        yield TriggerInput(fields, id=last, cursor=last)
        finally:
            await client.aclose()

    def problems(self) -> Iterator[str]:
        if self.start not in ("beginning", "now"):
            yield f"A stream is read from its 'beginning' or from 'now', and not from {self.start!r}."
        if not self.key:
            yield "A Redis stream has a key."
        if not self.url.startswith(SCHEMES):
            yield f"The url of a Redis server begins with {', '.join(SCHEMES)}."
        elif not _has_port(self.url):
            yield "The url of a Redis server, as in redis://localhost:6379, has a number for its port, up to 65535."

    def is_after(self, cursor: str, last: str) -> bool:
        return _place(cursor) > _place(last)

    async def _beginning(self, client: Any) -> str:
        """Return the id after which everything is new. It is asked for once."""
        if self.start == "beginning":
            return "0-0"
        entries = await self._answer(functools.partial(client.xrevrange, self.key, count=1))
        return str(entries[0][0]) if entries else "0-0"

    async def _answer(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return what Redis answers, as soon as it can be reached."""
        from redis.exceptions import ConnectionError as Unreachable
        from redis.exceptions import TimeoutError as TooLate

        while True:
            try:
                return await ask()
            except (Unreachable, TooLate) as error:
                log.warning("redis_unreachable", extra={"key": self.key, "error": str(error)})
                await asyncio.sleep(RETRY_SECONDS)


RedisStream.__name__ = "redis_stream"  # what its nodes are called
_redis_stream = NodeDecorator(REDIS_STREAM)(RedisStream)


def redis_stream(key: str, *, url: str = "redis://localhost:6379", start: str = "beginning") -> Stream[dict[str, str]]:
    """Give the fields of each entry of a Redis stream, from its beginning or only what comes from now on (`start="now"`).

    The run lives until it is stopped. While Redis cannot be reached, it waits. Needs the package redis (`pip install redis`).
    """
    wanted = RedisStream()
    wanted.key, wanted.url, wanted.start = key, url, start
    require_no_problems(wanted)
    return _redis_stream(key=key, url=url, start=start)


def _has_port(url: str) -> bool:
    """Whether the port in an address is one. What is wrong with it is told without the address: passwords stand there."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def _place(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)
