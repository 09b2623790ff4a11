"""Lines of history: which events of a log belong together, where a run has gone back to what it was.

A branch keeps what its parent has up to its cut. Mostly that is all there is, and the whole log is one line. A branch that
restores an earlier place leaves out what came after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from perdure.ids import BranchId, Seq
from perdure.journal import events as e


def places_gone_back_to(log: Iterable[e.Recorded]) -> frozenset[Seq]:
    """Return the places that are restored later in a log, by the last event of each."""
    created = (entry.event for entry in log if isinstance(entry.event, e.BranchCreated))
    return frozenset(event.cut for event in created if event.restored)


def lineage(log: Sequence[e.Recorded]) -> list[e.Recorded]:
    """Return the line of history at the end of a log that begins with its first event. Branches on which the run does not go on
    are no part of it."""
    return _lineage(log, len(log), _activated(log))


def lines(log: Sequence[e.Recorded]) -> Iterator[list[e.Recorded]]:
    """Yield each line of history of a whole log, from its first event to where it was left, and the last one to its end."""
    activated = _activated(log)
    for index, entry in enumerate(log):
        event = entry.event
        if isinstance(event, e.BranchCreated) and event.restored and event.branch_id in activated:
            yield _lineage(log, index, activated)
    yield _lineage(log, len(log), activated)


def _lineage(log: Sequence[e.Recorded], end: int, activated: Mapping[BranchId, int]) -> list[e.Recorded]:
    """Return the line that ends with this many events. A branch counts if the run goes on on it by then: it may never do so,
    and somebody may go back to the very moment before it does."""
    line: list[e.Recorded] = []
    index = end
    while index:
        index -= 1
        event = log[index].event
        if not isinstance(event, e.BranchCreated):
            line.append(log[index])
        elif activated.get(event.branch_id, end) < end:
            line.append(log[index])
            if event.restored:
                index = end = min(event.cut, index)
    line.reverse()
    return line


def _activated(log: Sequence[e.Recorded]) -> dict[BranchId, int]:
    """Return where in a log the run goes on on each branch."""
    return {
        entry.event.branch_id: index for index, entry in enumerate(log) if isinstance(entry.event, e.BranchActivated)
    }
