"""Runs whose logs are written on the side: how a transition of one is found again, and its events as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.store import rows
from perdure.store.shapes import EventBatch
from perdure.store.transitions import Transition


def is_last_written(transition: Transition, stored: str | None) -> bool:
    """Whether a transition that was refused is the very one that has brought its run to where it is: then only the answer was
    lost. `stored` is the run's `audit`.

    Its events cannot tell, because they may never have been written. So every transition leaves the id of its first event in the
    run's row. Another one can only have followed if somebody else has claimed the run since, and then it does not matter any more
    whether this one was written: the lease is lost.
    """
    known, meant = rows.audit_of(stored), transition.run.audit
    return known is not None and meant is not None and known.transition == meant.transition


def audited_rows(key: tuple[str, ...], batch: EventBatch) -> list[tuple[Any, ...]]:
    """Return the columns of `event_rows`, then created_at of the run, and its arrival"""
    return [(*row, batch.created_at, batch.arrival) for row in rows.event_rows(key, batch.events)]


def runs_of(batches: Sequence[EventBatch]) -> list[str]:
    """Return the runs that these events are of, each once."""
    return sorted({batch.run_id for batch in batches})
