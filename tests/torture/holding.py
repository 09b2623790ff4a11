"""Holding a commit of PostgreSQL between its fence and its end.

A commit there is one statement, so a stopped client cannot leave one half done. What can happen is that the server is still
at it when the client stops: a trigger makes it dwell behind the fence, where the run's row is locked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

_PREPARE = """
CREATE TABLE held_commits (run_id text PRIMARY KEY, seconds double precision NOT NULL);
CREATE FUNCTION dwell() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE dwelling double precision;
BEGIN
    SELECT seconds INTO dwelling FROM held_commits WHERE run_id = NEW.run_id;
    IF FOUND THEN
        PERFORM pg_sleep(dwelling);
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER dwell BEFORE INSERT ON run_events FOR EACH ROW
    WHEN (NEW.event_type = 'NodeCompleted' AND NEW.node_id = 'halt') EXECUTE FUNCTION dwell();
"""


async def prepare_holding(url: str) -> None:
    """Make it possible to hold commits of a completed `halt`."""
    async with connected(url) as connection:
        await connection.execute(_PREPARE)


async def hold_commit(url: str, run_id: str, *, seconds: float) -> None:
    """Have the commit of this run dwell behind its fence, whoever makes it."""
    async with connected(url) as connection:
        await connection.execute("INSERT INTO held_commits VALUES ($1, $2)", run_id, seconds)


async def is_holding(url: str) -> bool:
    async with connected(url) as connection:
        return bool(
            await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
            )
        )


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Any]:
    """Give a connection to the database beside those of the engines."""
    connection = await cast("Any", asyncpg).connect(url)
    try:
        yield connection
    finally:
        await connection.close()
