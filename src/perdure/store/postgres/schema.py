"""Bringing the tables of a PostgreSQL database up to date, under a lock that all processes respect."""

from __future__ import annotations

from perdure.clock import Clock
from perdure.store.migrate import plan, read_migrations
from perdure.store.postgres.session import Session

PACKAGE = "perdure.store.postgres"


async def migrate(session: Session, where: str, clock: Clock) -> None:
    """Apply what is missing, all of it or nothing. A database of a newer program is refused and left as it is."""
    known = read_migrations(PACKAGE)
    if not plan(await _applied(session), known, where=where):
        return
    async with session.transaction("begin_migration"):
        # Read again under the lock: another process may have been first. Naming the table makes this session notice that.
        await session.rows("create_migrations")
        for migration in plan(await _recorded(session), known, where=where):
            await session.script(migration.sql)
            await session.rows(
                "record_migration", migration.number, migration.name, migration.checksum, clock.now_micros()
            )


async def _applied(session: Session) -> dict[int, str]:
    (is_there,) = (await session.rows("has_migrations"))[0]
    return await _recorded(session) if is_there else {}


async def _recorded(session: Session) -> dict[int, str]:
    return {row[0]: row[1] for row in await session.rows("load_migrations")}
