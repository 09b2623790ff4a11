"""Stores that stop the process on its way through a commit, at the points where a lease may run out unnoticed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from perdure.clock import SystemClock
from perdure.ids import DEFAULT_PROJECT
from perdure.journal.events import NodeCompleted
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.store.sqlite.connection import parse_url
from perdure.store.sqlite.store import SqliteStore
from perdure.store.transitions import Outcome, Transition
from tests.torture.programs import pausing

STOPPING_NODE = "halt"


async def open_pausing_store(url: str) -> Store:
    """Open a store that can be armed: what stops is the commit of a completed `halt`."""
    return cast("Store", PausingStore(await _open(url)))


class PausingStore:
    """A store that stops before its commits begin and after they have ended."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, transitions: Sequence[Transition]) -> Sequence[Outcome]:
        _meet("before the fence", transitions)
        outcomes = await self._store.commit(transitions)
        _meet("after the commit", transitions)
        return outcomes


class PausingSqlite(SqliteStore):
    """A SQLite store that stops inside its transactions: everything is written, nothing is committed."""

    _offered: Sequence[Transition] = ()

    async def open(self) -> None:
        await super().open()
        self._file.writer.set_commit_hook(self._about_to_commit)

    async def commit(self, transitions: Sequence[Transition]) -> Sequence[Outcome]:
        self._offered = transitions
        return await super().commit(transitions)

    def _about_to_commit(self) -> bool:
        _meet("behind the fence", self._offered)
        return False  # which is to go on


async def _open(url: str) -> Store:
    if not url.startswith("sqlite:"):
        return await open_store(url)
    store = PausingSqlite(url, parse_url(url), project_id=DEFAULT_PROJECT, clock=SystemClock(), inline=False)
    await store.open()
    return store


def _meet(point: str, transitions: Sequence[Transition]) -> None:
    for transition in transitions:
        completed = [entry.event for entry in transition.events if isinstance(entry.event, NodeCompleted)]
        if any(event.node_id == STOPPING_NODE for event in completed):
            pausing.met(point, transition.run_id)
