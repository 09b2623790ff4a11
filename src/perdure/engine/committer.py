"""The one door through which transitions are committed.

Drivers say that they have decided something; while one group is on its way to the disk the next one gathers, and all that
has gathered goes in one durable commit. What a driver decides in the meantime merges into one transition of its run.

A group that the store cannot take (locked, full, unreachable) is offered again for as long as patience lasts: a transition is
fenced by the sequence number it was decided at, so offering it twice cannot write it twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from perdure.clock import Clock
from perdure.errors import StoreDamaged, StoreError, StoreReadOnly
from perdure.store.base import Outcome, Store, Transition

MAX_GROUP = 250
"""Transitions in one commit at most: bounds the time a single commit takes."""
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 1.0

log = logging.getLogger("perdure.committer")


class Source(Protocol):
    """Whatever decides transitions: a driver of a run."""

    def next_transition(self) -> Transition | None:
        """Hand over what was decided since the last call, if anything."""
        ...

    def committed(self, transition: Transition, outcome: Outcome) -> None:
        """Hear what became of it."""
        ...

    def storage_failed(self, error: StoreError) -> None:
        """Hear that the store could not be used for as long as patience lasted. What was handed over is lost."""
        ...


class Committer:
    """Commits for all runs of an engine. `run` belongs in a task of its own."""

    def __init__(
        self, store: Store, clock: Clock, *, patience_seconds: float, async_delay_seconds: float = 0.002
    ) -> None:
        self._store = store
        self._clock = clock
        self._patience = patience_seconds
        self._async_delay = async_delay_seconds
        self._waiting: dict[Source, None] = {}
        self._wake = asyncio.Event()
        self._is_urgent = False

    def submit(self, source: Source, *, urgent: bool = True) -> None:
        """Say that `source` has decided something. What is not urgent may wait a moment for company."""
        self._waiting[source] = None
        self._is_urgent = self._is_urgent or urgent
        self._wake.set()

    async def run(self) -> None:
        """Commit what gathers, for ever."""
        while True:
            await self._wake.wait()
            if not self._is_urgent:
                await self._clock.sleep(self._async_delay)
            await self.flush()

    async def flush(self) -> None:
        """Commit everything that has gathered, one group after the other."""
        while self._waiting:
            self._wake.clear()
            self._is_urgent = False
            group = list(self._waiting)[:MAX_GROUP]
            for source in group:
                del self._waiting[source]
            await self._commit(group)

    async def _commit(self, group: Sequence[Source]) -> None:
        offered = [(source, transition) for source in group if (transition := source.next_transition()) is not None]
        if not offered:
            return
        try:
            outcomes = await self._offer([transition for _, transition in offered])
        except StoreError as error:
            for source, _ in offered:
                source.storage_failed(error)
            return
        for (source, transition), outcome in zip(offered, outcomes, strict=True):
            source.committed(transition, outcome)

    async def _offer(self, transitions: Sequence[Transition]) -> Sequence[Outcome]:
        deadline = self._clock.monotonic() + self._patience
        delay = FIRST_RETRY_SECONDS
        while True:
            try:
                return await self._store.commit(transitions)
            except (StoreReadOnly, StoreDamaged):
                raise
            except StoreError as error:
                if self._clock.monotonic() >= deadline:
                    raise
                log.warning("store_not_ready", extra={"error": str(error), "retry_in_seconds": delay})
            await self._clock.sleep(delay)
            delay = min(delay * 2, LAST_RETRY_SECONDS)
