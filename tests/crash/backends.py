"""Worlds on real databases, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from perdure.store.base import Store
from perdure.store.transitions import Transition
from perdure.testing.loop import VirtualLoop
from perdure.testing.proxy import StoreProxy, innermost
from perdure.testing.stores import opened_store
from perdure.testing.world import World

_REFUSAL = """
CREATE TABLE testing_refusal (run_id text);
CREATE FUNCTION testing_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM testing_refusal AS r WHERE r.run_id = NEW.run_id) THEN
        RAISE EXCEPTION 'refused at commit';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER testing_refuse AFTER INSERT OR UPDATE ON run_state
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION testing_refuse();
"""


@asynccontextmanager
async def opened_world(url: str, folder: Path, **options: Any) -> AsyncGenerator[World]:
    """Open a store and a world around it."""
    async with opened_store(url) as store:
        roll_back = None if url.startswith("sqlite:") else await postgres_rolls_back(store)
        async with World(store, folder, roll_back=roll_back, **options) as world:
            yield world


async def postgres_rolls_back(store: Store) -> Any:
    """Return what makes PostgreSQL refuse a commit at its very end, when every row is written: a deferred trigger."""
    await _execute(store, _REFUSAL)

    @asynccontextmanager
    async def roll_back(_: Store | StoreProxy, transitions: Sequence[Transition]) -> AsyncGenerator[None]:
        refused = ", ".join(f"('{transition.run_id}')" for transition in transitions)
        await _execute(store, f"INSERT INTO testing_refusal VALUES {refused}")
        try:
            yield
        finally:
            await _execute(store, "DELETE FROM testing_refusal")

    return roll_back


async def _execute(store: Store, script: str) -> None:
    loop = asyncio.get_running_loop()
    with loop.outside() if isinstance(loop, VirtualLoop) else nullcontext():
        async with innermost(store)._readers.session() as session:
            await session.script(script)
