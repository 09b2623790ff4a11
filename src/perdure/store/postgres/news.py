"""Waking other processes, and being woken by them. Only ever a hint: whoever waits polls as well.

News is told beside the commits and never inside them: a NOTIFY holds a lock of the whole database until its transaction is
durable, so commits of all engines would wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from perdure.clock import Clock
from perdure.errors import StoreUnavailable
from perdure.store.postgres.session import CALL_SECONDS, Session
from perdure.store.postgres.texts import to_stored

CHANNEL = "perdure_news"
TELL_EVERY_SECONDS = 0.05
"""What happens in between is told together."""
LAST_WORD_SECONDS = 1.0
RECONNECT_SECONDS = 1.0

log = logging.getLogger("perdure.store.postgres")


class News:
    """One connection that listens, and that tells what this store has done. It is opened again when it was lost."""

    def __init__(self, connect: Callable[[], Awaitable[Session]], project_id: str, clock: Clock) -> None:
        self._connect = connect
        self._project_id = str(to_stored(project_id))
        self._clock = clock
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._arrived = asyncio.Event()
        self._teller: asyncio.Task[None] | None = None
        self._happened = 0
        self._told = 0
        self._is_closed = False

    async def wait(self, timeout_seconds: float) -> bool:
        """Return True when another process has told something since the last time this returned True."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._listening()
                await self._arrived.wait()
        except TimeoutError:
            return False
        self._arrived.clear()
        return True

    async def open(self) -> None:
        """Connect, if that can be done now."""
        with suppress(Exception):  # as in `_listening`
            await self._ready()

    def tell(self) -> None:
        """Wake the others soon, at most once in a while however often this is called."""
        self._happened += 1
        if self._teller is None or self._teller.done():
            self._teller = asyncio.get_running_loop().create_task(self._tell_all(), name="perdure news")

    async def close(self) -> None:
        """Tell what is still to be told, if that can be done at once, and end the connection."""
        try:
            if self._teller is not None:
                self._teller.cancel()
                await asyncio.wait((self._teller,))
            if self._told < self._happened:
                await self._send(LAST_WORD_SECONDS)
            if self._session is not None:
                await self._session.close()
        finally:
            self._is_closed = True
            self._drop()

    async def _listening(self) -> None:
        """Return when the connection is there. One that cannot be had leaves the caller to its time-out."""
        while True:
            try:
                await self._ready()
            except Exception as error:  # News is a hint: without it, waiting is polling.
                log.info("postgres_news_not_heard", extra={"error": str(error)})
                await self._clock.sleep(RECONNECT_SECONDS)
            else:
                return

    async def _tell_all(self) -> None:
        while self._told < self._happened:
            happened = self._happened
            await self._send(CALL_SECONDS)
            self._told = happened
            await self._clock.sleep(TELL_EVERY_SECONDS)

    async def _send(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                session = await self._ready()
                async with self._opening:
                    await session.write("tell_news", self._project_id)
        except Exception as error:  # A hint that is lost costs others a poll; nothing may depend on it.
            log.info("postgres_news_not_told", extra={"error": str(error)})
            self._drop()

    async def _ready(self) -> Session:
        """Return the connection, opened if there is none or it was lost."""
        async with self._opening:
            if self._session is not None and self._session.is_idle:
                return self._session
            was_lost = self._session is not None
            self._drop()
            session = await self._connect()
            try:
                await session.rows("set_news_session")
                await session.listen(CHANNEL, lambda pid, project: self._hear(session, pid, project))
                if self._is_closed:
                    raise StoreUnavailable("The store is closed.")
            except BaseException:
                session.discard()
                raise
            self._session = session
            if was_lost:
                self._arrived.set()
            return session

    def _hear(self, session: Session, pid: int, project_id: str) -> None:
        if pid != session.server_pid and project_id == self._project_id:
            self._arrived.set()

    def _drop(self) -> None:
        if self._session is not None:
            self._session.discard()
            self._session = None
