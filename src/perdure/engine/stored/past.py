"""A run as it was: at an event, at a checkpoint, or at the end of one of its lines of history. Read from the log alone."""

from __future__ import annotations

from perdure.engine.recording.tenure import steps_on_branch
from perdure.engine.stored.absence import look_for
from perdure.errors import LogNotWhole, PlaceNotFound
from perdure.graph.model import Graph
from perdure.graph.ordering import nodes_in_order
from perdure.ids import RunId, Seq
from perdure.journal.compare import Difference, Side, compare
from perdure.journal.events import BranchActivated, Recorded
from perdure.journal.projection import Projection, fold
from perdure.journal.states import BranchState, RunState
from perdure.store.base import Store
from perdure.store.shapes import StoredRun

EVENTS_PER_PAGE = 1_000


async def stored_at(store: Store, run_id: RunId, place: int | str) -> StoredRun:
    """Return a run as it stood after an event, or at a checkpoint. Nobody owned it then, and no commands waited for it, as far as
    that is not in the log. Raises PlaceNotFound, and LogNotWhole for a run with `journal="audit"`."""
    return _stored(fold(run_id, await log_until(store, run_id, await seq_of(store, run_id, place))))


async def seq_of(store: Store, run_id: RunId, place: int | str) -> Seq:
    """Return the event at a place: its own number, or that up to which a checkpoint goes."""
    state = await _with_log(store, run_id)
    if isinstance(place, str):
        saved = await store.load_checkpoint(run_id, place)
        if saved is None:
            raise PlaceNotFound(run_id, f"no checkpoint {place!r}")
        return saved.seq
    if not 1 <= place <= state.last_seq:
        raise PlaceNotFound(run_id, f"no event {place}: its log goes from 1 to {state.last_seq}")
    return Seq(place)


async def end_of_branch(store: Store, run_id: RunId, branch: int) -> Seq:
    """Return the last event that belongs to a line of history. Raises PlaceNotFound if there is no such line."""
    state = await _with_log(store, run_id)
    created = {int(found.branch_id): found for found in await store.list_branches(run_id)}
    if branch not in created:
        raise PlaceNotFound(run_id, f"no branch {branch}: it has {', '.join(map(str, created))}")
    if not await _was_on(store, run_id, created[branch]):
        raise PlaceNotFound(run_id, f"no branch {branch}: it was created, and the run never went on on it")
    for number in sorted(number for number in created if number > branch):  # some may be left out, and some never used
        left = created[number]
        if left.cut is not None and await _was_on(store, run_id, left):
            return Seq(left.seq - 1) if left.restored else left.cut
    return state.last_seq


async def _was_on(store: Store, run_id: RunId, branch: BranchState) -> bool:
    """Whether the run went on on a branch: that is recorded as soon as it is created."""
    if branch.parent is None:
        return True
    after = await store.load_events(run_id, after=branch.seq, limit=1)
    event = after[0].event if after else None
    return isinstance(event, BranchActivated) and event.branch_id == branch.branch_id


async def _with_log(store: Store, run_id: RunId) -> RunState:
    """Return a run of which the log tells all. Raises LogNotWhole if it may not."""
    state = await look_for(store, run_id, lambda: store.load_state(run_id))
    if state.audit is not None:
        raise LogNotWhole(run_id, "nobody can tell what it was at an earlier place")
    return state


async def log_until(store: Store, run_id: RunId, seq: Seq) -> list[Recorded]:
    """Return the log of a run up to an event."""
    log: list[Recorded] = []
    while len(log) < seq:
        page = await store.load_events(run_id, after=Seq(len(log)), limit=min(EVENTS_PER_PAGE, seq - len(log)))
        if not page:
            break
        log += page
    return log


def difference(one: StoredRun, other: StoredRun, graph: Graph | None) -> Difference:
    """Return how two states of runs differ, node by node in the order of a graph."""
    order = [] if graph is None else [node.id for node in nodes_in_order(graph)]
    return compare(_side(one), _side(other), order)


def _side(stored: StoredRun) -> Side:
    return Side(run=stored.run, nodes={node.node_id: node for node in stored.nodes}, given=stored.given)


def _stored(projection: Projection) -> StoredRun:
    run = projection.run
    return StoredRun(
        run=run,
        owner=None,
        nodes=tuple(sorted(projection.nodes.values(), key=lambda node: node.node_id)),
        steps=steps_on_branch(projection.steps, run),
        waits=tuple(projection.waits),
        signals=tuple(projection.waits.signals),
        given=projection.given,
        last_branch=projection.last_branch,
    )
