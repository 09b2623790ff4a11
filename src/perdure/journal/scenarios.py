"""A run as it stands, and earlier ones as ways in which it may go on: by places in the order of their graph."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.graph.model import INPUT, OUTPUT, Graph
from perdure.graph.ordering import nodes_in_order
from perdure.journal.moments import Items, Moment
from perdure.journal.states import SETTLED, NodeState, NodeStatus, RunStatus, WaitKind, WaitState, WaitStatus
from perdure.journal.times import NodeTime, PastRun, by_node, times_of, worked_so_far

ALMOST = 0.99
"""What has not ended is never whole."""
BEGUN = frozenset((NodeStatus.RUNNING, NodeStatus.SUSPENDED))

_STREAMED = frozenset(("map", "stream", "when", "unless"))
"""Edges by which a node may begin before their source has ended, and cannot end before it."""
_EARLY = _STREAMED | {"first"}
_LOST = frozenset((NodeStatus.FAILED, NodeStatus.CANCELLED))


class Shape:
    """A graph, by places in the order of its dependencies."""

    def __init__(self, graph: Graph) -> None:
        self.order = [node.id for node in nodes_in_order(graph)]
        self.places = {node_id: place for place, node_id in enumerate(self.order)}
        self.before: list[list[int]] = [[] for _ in self.order]
        """What has to end before a node begins."""
        self.beside: list[list[tuple[int, bool]]] = [[] for _ in self.order]
        """What may have yet to end when a node begins, and whether it is a stream, which has to end first."""
        for edge in graph.edges:
            if edge.source == INPUT or edge.target == OUTPUT:
                continue
            source, target = self.places[edge.source], self.places[edge.target]
            if edge.mode in _EARLY:
                self.beside[target].append((source, edge.mode in _STREAMED))
            else:
                self.before[target].append(source)
        self.readers: list[list[int]] = [[] for _ in self.order]
        for place, sources in enumerate(self.beside):
            for source, is_streamed in sources:
                if is_streamed:
                    self.readers[source].append(place)


class Scenario:
    """An earlier run, as a way in which this one may go on."""

    def __init__(self, shape: Shape, run: PastRun) -> None:
        found = times_of(run)
        self.times: list[NodeTime | None] = [found.get(node_id) for node_id in shape.order]
        self.ran = {shape.places[node_id] for node_id in found if node_id in shape.places}
        self.unknown = [place for place in self.ran if self.times[place] is None]
        self.took = [0 if time is None else time.worked for time in self.times]
        self.lengths = [0 if time is None else time.queued + time.worked for time in self.times]
        """From when a node could begin to its end."""
        self.waited = [time is not None and time.waited > 0 for time in self.times]
        self._overlapping = {
            (source, place)
            for place, sources in enumerate(shape.beside)
            for source, _ in sources
            if self._began_before_end_of(place, source)
        }

    def _began_before_end_of(self, place: int, source: int) -> bool:
        time, other = self.times[place], self.times[source]
        return time is not None and other is not None and time.started_at < other.ended_at

    def overlaps(self, source: int, place: int) -> bool:
        """Whether a node began before one of its sources had ended."""
        return (source, place) in self._overlapping


def is_waiting(status: RunStatus, waits: Iterable[WaitState]) -> bool:
    """Whether a run that may still go on waits for something from outside."""
    return status in (RunStatus.PAUSED, RunStatus.AWAITING_INPUT) or any(
        wait.status is WaitStatus.OPEN and wait.kind is not WaitKind.SLEEP for wait in waits
    )


class View:
    """A run as it stands, by places."""

    def __init__(self, shape: Shape, moment: Moment) -> None:
        self.shape = shape
        self.moment = moment
        self._nodes = [moment.nodes.get(node_id) for node_id in shape.order]
        self._statuses = [NodeStatus.IDLE if node is None else node.status for node in self._nodes]
        self._waits = by_node(moment.waits)
        self.endless = self._reached(shape.places[node_id] for node_id in moment.endless if node_id in shape.places)
        """What goes on until it is stopped, and what reads from it."""
        self.is_fed = any(not self._has_ended(place) for place in self.endless)
        finite = [place for place in range(len(shape.order)) if place not in self.endless]
        self.settled = [place for place in finite if self.status(place) in SETTLED]
        lost = self._behind(place for place in finite if self.status(place) in _LOST)
        self.unfinished = [place for place in finite if self.status(place) not in SETTLED and place not in lost]
        self.waits_now = is_waiting(moment.status, moment.waits)

    def status(self, place: int) -> NodeStatus:
        return self._statuses[place]

    def node(self, place: int) -> NodeState:
        node = self._nodes[place]
        assert node is not None, "only asked of nodes to which something has happened"
        return node

    def is_at_work(self, place: int) -> bool:
        """Whether what an attempt has worked so far need not be repeated."""
        if self.status(place) is NodeStatus.RUNNING:
            return self.moment.is_driven
        return self.status(place) is NodeStatus.SUSPENDED and self.shape.order[place] in self._waits

    def worked(self, place: int) -> int:
        node = self.node(place)
        return (
            worked_so_far(node, self._waits.get(node.node_id, ()), now=self.moment.now) if self.is_at_work(place) else 0
        )

    def items(self, place: int) -> Items | None:
        return self.moment.items.get(self.shape.order[place])

    def reads(self, place: int) -> bool:
        """Whether a node reads a stream that has not ended: it takes as long as that does."""
        return any(is_streamed and not self._has_ended(source) for source, is_streamed in self.shape.beside[place])

    def sleeps_for(self, place: int) -> int:
        """Return for how long a node sleeps at least before it goes on."""
        dues = [
            wait.due - self.moment.now
            for wait in self._waits.get(self.shape.order[place], ())
            if wait.status is WaitStatus.OPEN and wait.kind is WaitKind.SLEEP and wait.due is not None
        ]
        return max(min(dues, default=0), 0)

    def share(self, place: int, usual: int) -> float:
        """Return how much of a node that has not ended is done."""
        if self.status(place) not in BEGUN:
            return 0.0
        items = self.items(place)
        if items is not None and items.total is not None:
            return min(items.done / max(items.total, 1), ALMOST)
        return min(self.worked(place) / usual, ALMOST) if usual else 0.0

    def _has_ended(self, place: int) -> bool:
        return self.status(place) in SETTLED or self.status(place) in _LOST

    def _reached(self, starts: Iterable[int]) -> set[int]:
        reached = set(starts)
        pending = list(reached)
        while pending:
            for place in self.shape.readers[pending.pop()]:
                if place not in reached:
                    reached.add(place)
                    pending.append(place)
        return reached

    def _behind(self, starts: Iterable[int]) -> set[int]:
        """Return nodes that have been lost, and those that will never run because of it."""
        lost = set(starts)
        for place in range(len(self.shape.order)) if lost else ():
            sources = (
                *self.shape.before[place],
                *(source for source, is_streamed in self.shape.beside[place] if is_streamed),
            )
            if any(source in lost for source in sources):
                lost.add(place)
        return lost
