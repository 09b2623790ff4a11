"""Lines of history: which events of a log belong together, where a run has gone back to what it was.

A branch keeps what its parent has up to its cut. Mostly that is all there is, and the whole log is one line. A branch that
restores an earlier place leaves out what came after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from perdure.ids import BranchId, Seq
from perdure.journal import events as e


def places_gone_back_to(log: Iterable[e.Recorded]) -> frozenset[Seq]:
    """Return the places that are restored later in a log, by the last event of each."""
    created = (entry.event for entry in log if isinstance(entry.event, e.BranchCreated))
    return frozenset(event.cut for event in created if event.restored)


def lineage(log: Sequence[e.Recorded]) -> list[e.Recorded]:
    """Return the line of history at the end of a log that begins with its first event."""
    return _lineage(log, _activated(log))


def lines(log: Sequence[e.Recorded]) -> Iterator[list[e.Recorded]]:
    """Yield each line of history of a whole log, from its first event to where it was left, and the last one to its end."""
    activated = _activated(log)
    for index, entry in enumerate(log):
        if _restores(entry, activated):
            yield _lineage(log[:index], activated)
    yield _lineage(log, activated)


def _lineage(log: Sequence[e.Recorded], activated: Collection[BranchId]) -> list[e.Recorded]:
    for index in range(len(log) - 1, -1, -1):
        event = log[index].event
        if isinstance(event, e.BranchCreated) and _restores(log[index], activated):
            return [*_lineage(log[: min(event.cut, index)], activated), *log[index:]]
    return list(log)


def _restores(entry: e.Recorded, activated: Collection[BranchId]) -> bool:
    """Whether the run goes on from an earlier place here. It does not on a branch that it was never on."""
    event = entry.event
    return isinstance(event, e.BranchCreated) and event.restored and event.branch_id in activated


def _activated(log: Iterable[e.Recorded]) -> frozenset[BranchId]:
    return frozenset(entry.event.branch_id for entry in log if isinstance(entry.event, e.BranchActivated))
