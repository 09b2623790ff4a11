"""Lines of history: which events of a log belong together, where a run has gone back to what it was.

A branch keeps what its parent has up to its cut. Mostly that is all there is, and the whole log is one line. A branch that
restores an earlier place leaves out what came after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from perdure.ids import Seq
from perdure.journal import events as e


def places_gone_back_to(log: Iterable[e.Recorded]) -> frozenset[Seq]:
    """Return the places that are restored later in a log, by the last event of each."""
    return frozenset(event.cut for entry in log if (event := _restoring(entry)) is not None)


def lineage(log: Sequence[e.Recorded]) -> list[e.Recorded]:
    """Return the line of history at the end of a log that begins with its first event."""
    for index in range(len(log) - 1, -1, -1):
        if (event := _restoring(log[index])) is not None:
            return [*lineage(log[: min(event.cut, index)]), *log[index:]]
    return list(log)


def lines(log: Sequence[e.Recorded]) -> Iterator[list[e.Recorded]]:
    """Yield each line of history of a whole log, from its first event to where it was left, and the last one to its end."""
    for index, entry in enumerate(log):
        if _restoring(entry) is not None:
            yield lineage(log[:index])
    yield lineage(log)


def _restoring(entry: e.Recorded) -> e.BranchCreated | None:
    event = entry.event
    return event if isinstance(event, e.BranchCreated) and event.restored else None
