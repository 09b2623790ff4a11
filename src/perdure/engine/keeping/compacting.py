"""Making long logs compact: many events to a row. Nothing is lost by it, and nothing that is read of a run changes.

What resumes a run are its state rows, however long its log is. A long log costs room, and that is what is gained here. A part is
moved in one transaction, so that a crash leaves it in the one form or in the other, and whoever comes next goes on from there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from perdure.engine.stored.absence import look_for
from perdure.ids import RunId, Seq
from perdure.store.base import Store
from perdure.store.shapes import LongLog

EVENTS_PER_SEGMENT = 1_000
KEPT_EVENTS = 1_000
"""The newest events stay rows: a commit whose answer was lost is looked up among them."""
LONG_EVENTS = 100_000
"""Logs with more events than this that are rows are made compact, if nobody says otherwise."""
RUNS_PER_PAGE = 100


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """What was made compact, or would be."""

    is_dry_run: bool
    runs: int = 0
    events: int = 0


async def compact_run(store: Store, run_id: RunId, *, dry_run: bool = False) -> Compaction:
    """Make the log of one run compact, however long it is, but for its newest events."""
    state = await look_for(store, run_id, lambda: store.load_state(run_id))
    segments = await store.list_segments(run_id)
    log = LongLog(
        run_id=run_id,
        last_seq=state.last_seq,
        in_segments=segments[-1].last_seq if segments else 0,
        is_audited=state.audit is not None,
    )
    events = await _compact(store, log, dry_run=dry_run)
    return Compaction(is_dry_run=dry_run, runs=int(events > 0), events=events)


async def compact_long_logs(store: Store, *, longer_than: int = LONG_EVENTS, dry_run: bool = False) -> Compaction:
    """Make every log compact that has more events than this which are rows."""
    runs = events = 0
    async for log in _long_logs(store, max(longer_than, KEPT_EVENTS + EVENTS_PER_SEGMENT)):
        moved = await _compact(store, log, dry_run=dry_run)
        runs += moved > 0
        events += moved
    return Compaction(is_dry_run=dry_run, runs=runs, events=events)


async def _long_logs(store: Store, longer_than: int) -> AsyncIterator[LongLog]:
    after = RunId("")
    while page := await store.find_long_logs(longer_than=longer_than, after=after, limit=RUNS_PER_PAGE):
        for log in page:
            yield log
        after = page[-1].run_id


async def _compact(store: Store, log: LongLog, *, dry_run: bool) -> int:
    """Move as many events as fill whole segments, and return their number."""
    end = max(log.last_seq - KEPT_EVENTS, log.in_segments)
    there = await store.count_events(log.run_id, through=Seq(end)) if log.is_audited else end - log.in_segments
    full = there // EVENTS_PER_SEGMENT
    if dry_run:
        return full * EVENTS_PER_SEGMENT
    events = 0
    for number in range(1, full + 1):
        through = end if log.is_audited else log.in_segments + number * EVENTS_PER_SEGMENT
        events += await store.compact_log(log.run_id, through=Seq(through), most=EVENTS_PER_SEGMENT)
    return events
