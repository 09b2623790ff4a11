"""How long a run has been driven so far, whoever did it.

Each owner's events carry the time of its own clock, which says nothing beside another host's; but how much of it has passed
from its first event to its last one counts. Time at rest, and between a crash and the takeover, belongs to nobody.
"""

from __future__ import annotations

from perdure.ids import Epoch, RunId, Seq
from perdure.journal.events import AnyEvent, BranchCreated, RunReopened
from perdure.journal.states import RunState
from perdure.store.base import Store

EVENTS_PER_PAGE = 1_000


async def driven_so_far(store: Store, run: RunState) -> float:
    """Return for how many seconds engines have driven the run, by its row if that tells, else by its log."""
    return await driven_seconds(store, run.run_id) if run.audit is None else run.audit.driven_micros / 1_000_000


async def driven_seconds(store: Store, run_id: RunId) -> float:
    """Return for how many seconds engines have driven the run, as far as the log tells."""
    spans = _Spans()
    after = Seq(0)
    for segment in await store.list_segments(run_id):
        if segment.first_epoch == segment.last_epoch and not segment.reopens:
            spans.add(segment.first_epoch, segment.first_time, segment.last_time)
        else:
            await _read(store, run_id, spans, after=after, through=segment.last_seq)
        after = segment.last_seq
    await _read(store, run_id, spans, after=after, through=None)
    return spans.seconds


async def _read(store: Store, run_id: RunId, spans: _Spans, *, after: Seq, through: Seq | None) -> None:
    """Add what events say, one by one."""
    while page := await store.load_events(run_id, after=after, limit=EVENTS_PER_PAGE):
        for entry in page:
            if through is not None and entry.seq > through:
                return
            if begins_anew(entry.event):
                spans.clear()
            spans.add(entry.epoch, entry.at, entry.at)
        after = page[-1].seq


class _Spans:
    """The first and the last event of each owner."""

    def __init__(self) -> None:
        self._spans: dict[Epoch, tuple[int, int]] = {}

    def add(self, epoch: Epoch, first: int, last: int) -> None:
        began, ended = self._spans.get(epoch, (first, last))
        self._spans[epoch] = (began, max(ended, last))

    def clear(self) -> None:
        """The run has been opened again, and has all its time again."""
        self._spans.clear()

    @property
    def seconds(self) -> float:
        return sum(last - first for first, last in self._spans.values()) / 1_000_000


def begins_anew(event: AnyEvent) -> bool:
    """Whether a run has all its time again."""
    return isinstance(event, RunReopened) or (isinstance(event, BranchCreated) and event.restored)
