"""How long a run has been driven so far, whoever did it.

Each owner's events carry the time of its own clock, which says nothing beside another host's; but how much of it has passed
from its first event to its last one counts. Time at rest, and between a crash and the takeover, belongs to nobody.
"""

from __future__ import annotations

from perdure.ids import Epoch, RunId, Seq
from perdure.journal.events import RunReopened
from perdure.store.base import Store

EVENTS_PER_PAGE = 1_000


async def driven_seconds(store: Store, run_id: RunId) -> float:
    """Return for how many seconds engines have driven the run, as far as the log tells."""
    spans: dict[Epoch, tuple[int, int]] = {}
    after = Seq(0)
    while page := await store.load_events(run_id, after=after, limit=EVENTS_PER_PAGE):
        for entry in page:
            if isinstance(entry.event, RunReopened):
                spans.clear()  # it has all its time again
            first, last = spans.get(entry.epoch, (entry.at, entry.at))
            spans[entry.epoch] = (first, max(last, entry.at))
        after = page[-1].seq
    return sum(last - first for first, last in spans.values()) / 1_000_000
