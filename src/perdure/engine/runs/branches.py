"""The lines of history of a run, as its users see them: by their rows, and by the events that have begun them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from perdure.clock import from_micros
from perdure.ids import BranchId, NodeId, Seq
from perdure.journal.events import BranchActivated, BranchCreated, Event, RunRecovered
from perdure.journal.flow import Range
from perdure.journal.followed import followed_from
from perdure.journal.states import BranchState, RunState
from perdure.store.base import Store

EVENTS_OF_A_BEGINNING = 3
"""A branch is created, it is activated, and the doctor says why."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Items of a map that follow each other, by their positions."""

    first: int
    last: int
    """The first one itself if it is alone."""


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A line of history of a run."""

    branch: BranchId
    parent: BranchId | None
    """None of the first one."""
    cut: Seq | None
    """The last event of its parent that belongs to it, but for the nodes that it drops."""
    version: int | None
    """The version of the workflow that the run follows on it; None if the run never went on on it."""
    dropped: tuple[NodeId, ...]
    """Nodes that have begun again on it."""
    retried: tuple[NodeId, ...]
    """Nodes that were tried again on it."""
    items: dict[NodeId, tuple[Span, ...]]
    """Of maps of which only chosen items have begun again on it: which ones."""
    restored: bool
    """Whether it begins with what its parent was at the cut, whatever had become of the run since."""
    reason: str
    at: datetime | None
    """When it was created; None of the first one, which is as old as the run."""


async def load_branches(store: Store, run: RunState) -> list[Branch]:
    """Return the lines of history of a run in the order in which they were created."""
    branches: list[Branch] = []
    version: int | None = None
    for row in await store.list_branches(run.run_id):
        begun = await _beginning(store, run, row)
        version = run.version if run.audit is not None else _followed(begun, version)
        is_used = (
            row.parent is None or run.audit is not None or any(isinstance(event, BranchActivated) for event in begun)
        )
        branches.append(_branch(row, begun, version if is_used else None))
    return branches


async def _beginning(store: Store, run: RunState, row: BranchState) -> Sequence[Event]:
    """Return the events with which a branch begins. If the log is written on the side, they may be missing."""
    page = await store.load_events(run.run_id, after=Seq(row.seq - 1), limit=EVENTS_OF_A_BEGINNING)
    return [entry.event for entry in page if row.parent is None or _begins(entry.event, row.branch_id)]


def _begins(event: Event, branch_id: BranchId) -> bool:
    match event:
        case BranchCreated(branch_id=begun) | BranchActivated(branch_id=begun) | RunRecovered(branch=begun):
            return begun == branch_id
        case _:
            return False


def _followed(begun: Sequence[Event], before: int | None) -> int | None:
    """Return the version that a run follows on a branch that has begun so."""
    told = [followed.version for event in begun if (followed := followed_from(event)) is not None]
    return told[-1] if told else before


def _branch(row: BranchState, begun: Sequence[Event], version: int | None) -> Branch:
    chosen = _chosen(begun)
    return Branch(
        branch=row.branch_id,
        parent=row.parent,
        cut=row.cut,
        version=version,
        dropped=row.dropped,
        retried=tuple(node_id for node_id in row.retried if node_id not in chosen),
        items={node_id: tuple(map(_span, ranges)) for node_id, ranges in chosen.items()},
        restored=row.restored,
        reason=row.reason,
        at=from_micros(row.created_at) if row.created_at else None,
    )


def _chosen(begun: Sequence[Event]) -> Mapping[NodeId, Sequence[Range]]:
    created = next((event for event in begun if isinstance(event, BranchCreated)), None)
    kept = {} if created is None else created.items
    return {node_id: found.chosen for node_id, found in kept.items() if found.chosen}


def _span(chosen: Range) -> Span:
    first, count = chosen
    return Span(first=first, last=first + count - 1)
