"""Following a log that is written on the side: its last events come a moment after the end of the run, or never."""

from __future__ import annotations

from perdure.clock import Clock
from perdure.ids import Seq
from perdure.journal.states import RunState
from perdure.store.base import Store

LAST_EVENTS_SECONDS = 1.0
"""How long after the end of a run its last events may still arrive, for whoever follows it."""
LOOK_AGAIN_SECONDS = 0.1


async def last_events(store: Store, run: RunState, clock: Clock, *, after: int) -> None:
    """Return when the last event of a run that has ended is in its log, or when it is not to be expected any more."""
    deadline = clock.monotonic() + LAST_EVENTS_SECONDS
    while after < run.last_seq and clock.monotonic() < deadline:
        if await store.load_events(run.run_id, after=Seq(run.last_seq - 1), limit=1):
            return
        await clock.sleep(LOOK_AGAIN_SECONDS)
