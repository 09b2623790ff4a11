"""The committer on the side: writes the events of runs with `journal="audit"`, as well as that goes.

What these runs are is in their tables, which the other committer has made durable before anything comes here. So nothing waits
for this one, and nothing depends on it: what it cannot write in time is lost, and the log of the run has a gap.

the store cannot be used   locked, full, unreachable: the same events are offered again after a while. Others gather meanwhile,
                           and when they are too many, the oldest are lost.
an event is refused        by a constraint, say: the others are written, and it is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from perdure.clock import Clock
from perdure.errors import StoreError
from perdure.ids import RunId
from perdure.journal.events import Recorded
from perdure.store.base import Store
from perdure.store.records import Refused
from perdure.store.shapes import EventBatch
from perdure.store.transitions import Transition

MOST_EVENTS: Final = 20_000
MOST_BYTES: Final = 32 * 1024 * 1024
"""So much waits at most, by a rough measure of what values take."""
EVENTS_AT_ONCE: Final = 500
"""Written in one go: bounds for how long commits may have to wait for it where a database has one writer."""
GATHER_SECONDS: Final = 0.05
FIRST_RETRY_SECONDS: Final = 0.5
LAST_RETRY_SECONDS: Final = 10.0
WARN_EVERY_SECONDS: Final = 60.0
LAST_WORD_SECONDS: Final = 0.5
"""So long at least is what waits written when an engine stops, however little time is left."""
_EVENT_BYTES = 200

log = logging.getLogger("perdure.trail")


class Trail:
    """Events that wait to be written, and whoever writes them. `run` belongs in a task of its own."""

    def __init__(self, store: Store, clock: Clock, *, on_written: Callable[[RunId], None]) -> None:
        self._store = store
        self._clock = clock
        self._on_written = on_written
        self._waiting: deque[tuple[EventBatch, int]] = deque()
        self._events = 0
        self._bytes = 0
        self._offered: list[EventBatch] = []
        """What is on its way, or is to be offered again before all else."""
        self._writing = asyncio.Lock()
        self._have_come = asyncio.Event()
        self._lost = 0
        self._warned_at = float("-inf")

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, and nothing is on its way."""
        return not self._waiting and not self._offered

    def add(self, transition: Transition) -> None:
        """Take over the events of a transition that is durable. Never blocks, and never raises because of them."""
        if not transition.events:
            return
        run = transition.run
        batch = EventBatch(
            run_id=run.run_id,
            created_at=run.created_at,
            arrival="" if run.audit is None else run.audit.arrival,
            events=transition.events,
        )
        weight = sum(map(_weight, batch.events))
        self._waiting.append((batch, weight))
        self._events += len(batch.events)
        self._bytes += weight
        while len(self._waiting) > 1 and (self._events > MOST_EVENTS or self._bytes > MOST_BYTES):
            self._lose(self._next(), "too many events wait to be written")
        self._have_come.set()

    async def run(self) -> None:
        """Write what gathers, for ever."""
        delay = FIRST_RETRY_SECONDS
        while True:
            await self._have_come.wait()
            await self._clock.sleep(GATHER_SECONDS)
            if await self._write_all():
                delay = FIRST_RETRY_SECONDS
            else:
                await self._clock.sleep(delay)
                delay = min(delay * 2, LAST_RETRY_SECONDS)

    async def flush(self, seconds: float) -> bool:
        """Write what waits, if that can be done within some time. Return whether nothing is left."""
        try:
            async with asyncio.timeout(seconds):
                await self._write_all()
        except TimeoutError:
            pass
        return self.is_empty

    async def close(self, seconds: float) -> None:
        """Write what waits before the engine is gone, and say what is lost with it."""
        if not await self.flush(max(seconds, LAST_WORD_SECONDS)):
            while self._waiting:
                self._offered.append(self._next())
            self._warned_at = float("-inf")
            for batch in self._offered:
                self._lost += len(batch.events)
            self._offered.clear()
            self._warn("the engine stopped before they could be written")

    async def _write_all(self) -> bool:
        """Write all that waits; False if the store could not be used. Whoever leaves meanwhile leaves nothing out."""
        async with self._writing:
            try:
                while self._take():
                    await self._write(self._offered)
                    written = dict.fromkeys(batch.run_id for batch in self._offered)
                    self._offered = []
                    for run_id in written:
                        self._on_written(run_id)
            except StoreError as error:
                self._warn(str(error), is_lost=False)
            finally:
                if not self.is_empty:
                    self._have_come.set()
            return self.is_empty

    def _take(self) -> bool:
        """Have something on its way; False if there is nothing."""
        count = sum(len(batch.events) for batch in self._offered)
        while self._waiting and (not count or count + len(self._waiting[0][0].events) <= EVENTS_AT_ONCE):
            batch = self._next()
            self._offered.append(batch)
            count += len(batch.events)
        self._have_come.clear()
        return bool(self._offered)

    def _next(self) -> EventBatch:
        batch, weight = self._waiting.popleft()
        self._events -= len(batch.events)
        self._bytes -= weight
        return batch

    async def _write(self, batches: Sequence[EventBatch]) -> None:
        """Write events. What the database will not have is looked for by halves, and left out."""
        try:
            await self._store.append_events(batches)
        except StoreError:
            raise
        except Exception as error:  # what an event holds may bring up anything, and nothing may come of it
            if not isinstance(error, Refused):
                log.error("events_not_written", exc_info=error)
            for half in _halves(batches):
                await self._write(half)
            if _is_single(batches):
                self._lose(batches[0], str(error))

    def _lose(self, batch: EventBatch, why: str) -> None:
        self._lost += len(batch.events)
        self._warn(why)

    def _warn(self, why: str, *, is_lost: bool = True) -> None:
        """Say once in a while what goes wrong: a run may have thousands of events."""
        now = self._clock.monotonic()
        if now - self._warned_at < WARN_EVERY_SECONDS:
            return
        self._warned_at = now
        lost, self._lost = self._lost, 0
        log.warning("events_lost" if is_lost else "events_wait", extra={"lost": lost, "error": why})


def _is_single(batches: Sequence[EventBatch]) -> bool:
    return len(batches) == 1 and len(batches[0].events) == 1


def _halves(batches: Sequence[EventBatch]) -> list[list[EventBatch]]:
    """Return the two halves of these events; none if there is one event."""
    if len(batches) > 1:
        middle = len(batches) // 2
        return [list(batches[:middle]), list(batches[middle:])]
    (batch,) = batches
    if len(batch.events) < 2:
        return []
    middle = len(batch.events) // 2
    parts = (batch.events[:middle], batch.events[middle:])
    return [[msgspec.structs.replace(batch, events=part)] for part in parts]


def _weight(entry: Recorded) -> int:
    """Return about how many bytes an event holds on to."""
    event = entry.event
    return _EVENT_BYTES + _size(getattr(event, name) for name in event.__struct_fields__)


def _size(values: Iterable[Any]) -> int:
    size = 0
    for value in values:
        if isinstance(value, msgspec.Raw):
            size += memoryview(value).nbytes
        elif isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict):
            size += _size(value.values())  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    return size
