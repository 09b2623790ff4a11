"""A connection to PostgreSQL with the settings that durability needs. The only place that touches the driver."""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from perdure.errors import StoreReadOnly, StoreUnavailable
from perdure.store.postgres.address import Address
from perdure.store.postgres.texts import from_stored, to_stored

Rows = list[tuple[Any, ...]]

LOCK_TIMEOUT = "3s"
COMMIT_LOCK_TIMEOUT = "200ms"
"""As in `begin_pooled` and `begin_pooled_commit`. What waits for a lock on the way of all commits makes them wait as well."""
CALL_SECONDS = 20.0
"""No statement is waited for any longer. More than the server's own statement_timeout, so that it is the server that gives up
first."""
CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 2.0

log = logging.getLogger("perdure.store.postgres")


class Session:
    """One connection. It does one thing at a time."""

    def __init__(self, raw: Any, sql: Mapping[str, str], *, pooled: bool, commits: bool = False) -> None:
        self._raw = raw
        self._sql = sql
        self._pooled = pooled
        self._statements: dict[str, Any] = {}
        self._watch = _Watch(self.discard)
        self._begin = "begin" if not pooled else "begin_pooled_commit" if commits else "begin_pooled"

    @property
    def is_idle(self) -> bool:
        """Whether the connection is open and outside of any transaction."""
        return not self._raw.is_closed() and not self._raw.is_in_transaction()

    @property
    def keeps_statements(self) -> bool:
        """Whether what was made ready once is there the next time: there is no pooler between."""
        return not self._pooled

    @property
    def server_pid(self) -> int:
        return int(self._raw.get_server_pid())

    async def rows(self, name: str, *values: Any) -> Rows:
        """Execute the statement called `name` and return its rows. Outside of `transaction` it is one by itself."""
        found = await self.write(name, *(to_stored(value) for value in values))
        return [from_stored(tuple(row)) for row in found]

    async def write(self, name: str, *values: Any) -> Rows:
        """As `rows`, for values that are in stored form already. What it returns is in stored form, too."""
        found: Rows
        if not self._pooled:
            # The driver's own cache of statements costs more than it saves where there are so few of them.
            if (statement := self._statements.get(name)) is None:
                statement = await self._prepare(name)
            self._watch.begin()
            try:
                found = await statement.fetch(*values)
            except Exception as error:
                if self._watch.has_cut_off:
                    raise TimeoutError("it took too long") from error
                raise
            finally:
                self._watch.end()
        elif self._raw.is_in_transaction():
            found = await self._raw.fetch(self._sql[name], *values, timeout=CALL_SECONDS)
        else:
            async with self.transaction():
                found = await self._raw.fetch(self._sql[name], *values, timeout=CALL_SECONDS)
        return found

    async def _prepare(self, name: str) -> Any:
        statement = self._statements[name] = await self._raw.prepare(self._sql[name], timeout=CALL_SECONDS)
        return statement

    async def script(self, text: str) -> None:
        """Execute any number of statements."""
        await self._raw.execute(text)

    @asynccontextmanager
    async def transaction(self, begin: str | None = None) -> AsyncGenerator[None, None]:
        """Commit what is done inside, or nothing of it."""
        await self._raw.execute(self._sql[begin or self._begin])
        try:
            yield
        except Exception:
            if not self._raw.is_closed():
                await self._raw.execute("ROLLBACK")
            raise
        await self._raw.execute("COMMIT")

    async def listen(self, channel: str, heard: Callable[[int, str], None]) -> None:
        """Call `heard` with the sender's server process and the message, for whatever is told on `channel`."""

        def callback(_connection: Any, pid: int, _channel: str, message: str) -> None:
            heard(pid, message)

        await self._raw.add_listener(channel, callback)

    async def close(self) -> None:
        """End the connection in good order, or cut it off if that takes too long."""
        self._watch.stop()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._raw.close()
        except Exception:  # It is to be gone; why it could not say goodbye does not matter.
            self.discard()

    def discard(self) -> None:
        """Cut the connection off: it may still receive an answer that nobody waits for."""
        self._watch.stop()
        self._raw.terminate()


class _Watch:
    """Cuts a connection off when a call takes too long. One timer serves many calls: the driver's own would be set and taken
    back for each of them."""

    def __init__(self, cut_off: Callable[[], None]) -> None:
        self._cut_off = cut_off
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._began: float | None = None
        self.has_cut_off = False

    def begin(self) -> None:
        """A call begins."""
        self._began = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(CALL_SECONDS, self._look)

    def end(self) -> None:
        """It has ended."""
        self._began = None

    def stop(self) -> None:
        """There are no more calls."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, *, again: bool = False) -> None:
        self._timer = None
        if self._began is None:
            return
        left = self._began + CALL_SECONDS - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif not again:  # if it was the loop that was held up, the answer may be there, and be heard in this round
            self._timer = self._loop.call_later(0, functools.partial(self._look, again=True))
        else:
            self.has_cut_off = True
            self._cut_off()


async def open_session(address: Address, sql: Mapping[str, str], *, commits: bool = False) -> Session:
    """Connect, set what durability needs, and verify that it holds. One that `commits` waits for no lock for long."""
    driver = _load_driver()
    raw = await driver.connect(
        address.dsn,
        timeout=CONNECT_SECONDS,
        statement_cache_size=0 if address.pooled else 100,
        max_cached_statement_lifetime=0,
        server_settings=None if address.names_program else {"application_name": "perdure"},
    )
    session = Session(raw, sql, pooled=address.pooled, commits=commits)
    if address.pooled:
        return session
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            lock_timeout = COMMIT_LOCK_TIMEOUT if commits else LOCK_TIMEOUT
            await session.rows("set_session", lock_timeout, "force_generic_plan" if commits else None)
            held = await session.rows("check_session", lock_timeout)
    except BaseException:
        session.discard()
        raise
    if not all(held[0]):
        session.discard()
        raise StoreUnavailable(
            f"The database {address.where} does not keep the settings of a session. "
            "If it is behind PgBouncer in transaction mode, add ?pgbouncer=1 to the URL."
        )
    return session


async def check_server(session: Session, where: str) -> None:
    """Refuse a server that cannot hold runs, and warn of one that may lose them."""
    encoding, fsync, full_page_writes, is_standby = (await session.rows("describe_server"))[0]
    if encoding != "UTF8":
        raise StoreUnavailable(
            f"The database {where} has the encoding {encoding}, which cannot hold every text. "
            "Create one with: createdb --encoding UTF8 --template template0 NAME."
        )
    if is_standby:
        raise StoreReadOnly(
            f"The database {where} is a standby. Connect to the primary (?target_session_attrs=read-write)."
        )
    if fsync != "on" or full_page_writes != "on":
        log.warning(
            "postgres_may_lose_commits",
            extra={"where": where, "fsync": fsync, "full_page_writes": full_page_writes},
        )


def _load_driver() -> Any:
    try:
        return importlib.import_module("asyncpg")
    except ImportError as error:
        raise StoreUnavailable(
            "PostgreSQL needs the package asyncpg, which is not installed. Run: pip install asyncpg."
        ) from error
