"""What a run was at a place to which somebody wants it to go back: read from its log, with the items that are still kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from perdure.engine.driving.goingback import RESTORE, Back
from perdure.engine.stored.past import EVENTS_PER_PAGE, log_until
from perdure.errors import JournalError
from perdure.graph.plan import Plan
from perdure.ids import CommandId, NodeId, RunId, Seq
from perdure.journal.events import Recorded
from perdure.journal.projection import Projection, fold
from perdure.journal.restoring import Past, cone_of_restore, happened_since, is_about_to_branch, needed_streams
from perdure.journal.states import MOVING
from perdure.store.base import Store
from perdure.store.shapes import ItemRange, StoredRun
from perdure.store.transitions import ItemRow

ROWS_PER_PAGE = 500
BEGINNING = (-1, -1)


class Returning(msgspec.Struct, frozen=True, kw_only=True):
    """A place to go back to, with what has to be brought along."""

    past: Past
    rows: tuple[ItemRow, ...] = ()
    """Items that the branch needs, as they are kept on the branches on which their streams began."""


async def load_returnings(store: Store, stored: StoredRun, plan: Plan) -> Mapping[CommandId, Returning | None]:
    """Return what is needed for a run that rests to go back where it was asked to, by command; None if it cannot. Who claims the
    run as it was loaded can rely on it: nobody has changed anything meanwhile."""
    found: dict[CommandId, Returning | None] = {}
    for command in stored.commands if stored.run.status not in MOVING else ():
        if command.kind != RESTORE:
            continue
        found[command.command_id] = None
        if stored.run.audit is None:
            back = msgspec.convert(command.payload, Back)
            with suppress(JournalError):  # the place is not there any more, and the command comes to nothing
                past = await load_past(store, stored.run.run_id, Seq(back.seq))
                rows = await _rows_for(past, plan, store, stored.run.run_id)
                found[command.command_id] = Returning(past=past, rows=rows)
    return found


async def load_past(store: Store, run_id: RunId, seq: Seq) -> Past:
    """Return a place of a run's log, and what has become of the run since."""
    log = await log_until(store, run_id, seq)
    since = await _log_after(store, run_id, seq)
    then = fold(run_id, log)
    is_going_back = is_about_to_branch(log[-1].event, since[0].event if since else None)
    begun, fed = happened_since(since)
    ranges = await store.load_ranges(run_id) if any(node.stream for node in then.nodes.values()) else ()
    return Past(then=then, kept=_kept(then, ranges), begun=begun, fed=fed, is_going_back=is_going_back)


async def _log_after(store: Store, run_id: RunId, seq: Seq) -> list[Recorded]:
    log: list[Recorded] = []
    while page := await store.load_events(run_id, after=seq, limit=EVENTS_PER_PAGE):
        log += page
        seq = page[-1].seq
    return log


def _kept(then: Projection, ranges: Sequence[ItemRange]) -> frozenset[NodeId]:
    """Return the nodes of whose streams everything is there that had been recorded at a place. A stream may have got more since,
    and then there are rows that are younger; or others in the place of some that nobody had seen."""
    counts: dict[tuple[NodeId, int], int] = {}
    for found in ranges:
        if found.seq <= then.run.last_seq:
            key = (found.node_id, found.branch_id)
            counts[key] = counts.get(key, 0) + found.count
    return frozenset(
        node.node_id
        for node in then.nodes.values()
        if (stream := node.stream) is not None
        and stream.entries
        and counts.get((node.node_id, stream.branch_id)) == stream.entries
    )


async def _rows_for(past: Past, plan: Plan, store: Store, run_id: RunId) -> tuple[ItemRow, ...]:
    rows: list[ItemRow] = []
    for node_id in needed_streams(past, plan, cone_of_restore(past, plan)):
        stream = past.then.node(node_id).stream
        assert stream is not None, "only streams have items"
        after = BEGINNING
        while page := await store.load_items(
            run_id, stream.branch_id, node_id, after=after, in_order=False, limit=ROWS_PER_PAGE
        ):
            rows += (row for row in page if row.seq <= past.seq)
            after = (page[-1].position, page[-1].seq)
            if page[-1].seq > past.seq:
                break
    return tuple(rows)
