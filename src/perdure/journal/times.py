"""How long nodes have worked: in runs that have completed, and so far in one that goes on.

Time in which a node waits for people, for signals or for somebody's word is no work. Time in which it sleeps counts: it passes
by itself, and will take as long the next time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from perdure.ids import NodeId, RunId
from perdure.journal.states import NodeState, WaitKind, WaitState, WaitStatus

LEAST_MICROS = 1_000
"""What is too short to be measured has taken so long: a node that ran is told from one that did not."""


class PastWait(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """For how long a node of a run that has completed has waited for something."""

    node_id: NodeId
    kind: WaitKind
    opened_at: int
    settled_at: int


class PastNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A completed node of a run that has completed: its last attempt."""

    node_id: NodeId
    scheduled_at: int | None
    started_at: int | None
    ended_at: int | None
    duration_ms: int | None
    """None if nothing has run: what it gives was said by somebody."""
    items: int | None
    """What it has done item by item; None if it has nothing to do with streams."""


class PastRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a run that has completed, as far as time goes. Nodes that were skipped are not in it."""

    run_id: RunId
    nodes: tuple[PastNode, ...]
    waits: tuple[PastWait, ...] = ()


class NodeTime(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How long a node took. Times are in microseconds."""

    queued: int
    """For how long it could have begun before it did."""
    worked: int
    waited: int
    """For how long it waited for something from outside meanwhile."""
    items: int | None
    started_at: int
    ended_at: int


def times_of(run: PastRun) -> dict[NodeId, NodeTime | None]:
    """Return how long the nodes of a run took that have completed; None of one that has given something without running."""
    waits: dict[NodeId, list[PastWait]] = {}
    for wait in run.waits:
        waits.setdefault(wait.node_id, []).append(wait)
    return {node.node_id: _time_of(node, waits.get(node.node_id, ())) for node in run.nodes}


def _time_of(node: PastNode, waits: Iterable[PastWait]) -> NodeTime | None:
    if node.started_at is None or node.ended_at is None or node.duration_ms is None:
        return None
    took = node.ended_at - node.started_at
    spans = [(wait.opened_at, wait.settled_at, wait.kind) for wait in waits]
    waited = covered(
        ((start, end) for start, end, kind in spans if kind is not WaitKind.SLEEP), node.started_at, node.ended_at
    )
    if node.items is not None and not spans:
        # It may have rested with its run, because of what others waited for: then only what followed was measured.
        took = min(took, node.duration_ms * 1_000)
    return NodeTime(
        queued=max(node.started_at - (node.scheduled_at or node.started_at), 0),
        worked=max(took - waited, LEAST_MICROS),
        waited=waited,
        items=node.items,
        started_at=node.started_at,
        ended_at=node.ended_at,
    )


def worked_so_far(node: NodeState, waits: Iterable[WaitState], *, now: int) -> int:
    """Return for how long the attempt at a node has worked that has not ended."""
    if node.started_at is None:
        return 0
    spans = ((wait.opened_at, _end(wait, now)) for wait in waits if wait.kind is not WaitKind.SLEEP)
    return max(now - node.started_at - covered(spans, node.started_at, now), 0)


def took(node: NodeState, waits: Iterable[WaitState], *, now: int | None) -> int | None:
    """Return for how long a node has worked, in its last attempt: to its end, or until `now`. None if it has not begun, or nobody
    drives the run and it has not ended."""
    until = node.ended_at if node.ended_at is not None else now
    if node.started_at is None or until is None:
        return None
    return worked_so_far(node, waits, now=until)


def covered(spans: Iterable[tuple[int, int]], start: int, end: int) -> int:
    """Return how much of the time from `start` to `end` lies in one of the spans, or in several."""
    total, reached = 0, start
    for begin, finish in sorted(spans):
        begin, finish = max(begin, reached), min(finish, end)
        if finish > begin:
            total += finish - begin
            reached = finish
    return total


def by_node(waits: Iterable[WaitState]) -> Mapping[NodeId, list[WaitState]]:
    """Return the waits of each node that has some."""
    found: dict[NodeId, list[WaitState]] = {}
    for wait in waits:
        found.setdefault(wait.node_id, []).append(wait)
    return found


def _end(wait: WaitState, now: int) -> int:
    return now if wait.status is WaitStatus.OPEN or wait.settled_at is None else wait.settled_at
