"""A run as somebody watches it: what its events add up to so far, and what its bodies show in passing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from perdure.cli.waits import Awaited
from perdure.engine.recording.hub import Flash
from perdure.engine.streams.live import EdgeFacts, LiveStreams, NodeFacts
from perdure.graph.model import FED, Graph, Node
from perdure.ids import NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.estimate import NOTHING, Estimate, Estimator
from perdure.journal.evolve import create_run
from perdure.journal.headway import Headway, Headways
from perdure.journal.moments import moment_of
from perdure.journal.pace import Pace
from perdure.journal.projection import Projection
from perdure.journal.states import MOVING, TERMINAL, WAITING, NodeState, NodeStatus, RunState, WaitKind, WaitState


class Shown(msgspec.Struct):
    """What a body shows while it runs."""

    done: float | None = None
    total: float | None = None
    text: str = ""


class Flowing(msgspec.Struct, frozen=True, kw_only=True):
    """A node that reads or gives a stream: what is recorded of it and, if it is driven here, how it goes at this moment."""

    headway: Headway | None = None
    """None if it only reads."""
    facts: NodeFacts | None = None
    edges: tuple[EdgeFacts, ...] = ()
    """The streams that it reads."""

    @property
    def total(self) -> int | None:
        """How many items there will be in the end, once that is known."""
        known = None if self.headway is None else self.headway.total
        return self.facts.total if known is None and self.facts is not None else known


class Watch:
    """Follows one run from its first event on."""

    def __init__(self, run_id: RunId, nodes: Sequence[Node], *, known: int, graph: Graph | None = None) -> None:
        self.run_id = run_id
        self.nodes = nodes
        self.is_elsewhere = False
        """Whether another process drives the run, if anybody does."""
        self.stays = False
        """Whether the run is watched until it has ended, however long it rests."""
        self.look: Callable[[], LiveStreams | None] = _nothing
        """Returns how streams flow at this moment, if the run is driven here."""
        self.estimator = Estimator(None, ())
        """Tells how long the run will take, once it knows earlier runs."""
        self._graph = graph
        self._headways = Headways(graph)
        self._pace = Pace()
        self.known = known
        """The last event that was there before watching began."""
        self.shown: dict[NodeId, Shown] = {}
        self.pasts: dict[Seq, Projection] = {}
        """The run as it was at places to which it goes back in what is heard next, by the last event of each."""
        self._projection: Projection | None = None

    @property
    def run(self) -> RunState:
        return self.projection.run

    @property
    def projection(self) -> Projection:
        assert self._projection is not None, "the log of a run begins with its creation"
        return self._projection

    @property
    def last_seq(self) -> int:
        return 0 if self._projection is None else self._projection.run.last_seq

    @property
    def goes_on_elsewhere(self) -> bool:
        """Whether another process drives the run, as far as is known."""
        return self.is_elsewhere and bool(self.last_seq) and not self.rests

    @property
    def rests(self) -> bool:
        """Whether the run has ended, or waits for something from outside."""
        return self.run.status not in MOVING

    def hear(self, entries: Iterable[e.Recorded]) -> None:
        """Take in the next events of the log."""
        for entry in entries:
            if self._projection is not None:
                self._projection.apply(entry.event, at=entry.at)
            elif isinstance(entry.event, e.RunCreated):
                born = create_run(self.run_id, entry.event, at=entry.at, branch_id=entry.branch_id, epoch=entry.epoch)
                self._projection = Projection(born)
                self._projection.pasts = self.pasts
            self._note(entry)

    def see(self, projection: Projection, entries: Iterable[e.Recorded]) -> None:
        """Take in how the run stands by its tables, and what its log tells of it: perhaps not all."""
        self._projection = projection
        for entry in entries:
            self._note(entry)

    def _note(self, entry: e.Recorded) -> None:
        self._pace.hear(entry.event, at=entry.at)
        # Not at the start of an attempt: what its body shows comes sooner than the news that it was started.
        if isinstance(entry.event, e.NodeCompleted | e.NodeFailed | e.AttemptLost):
            self.shown.pop(entry.event.node_id, None)

    def flash(self, flash: Flash) -> None:
        """Take in what a body shows."""
        shown = self.shown.setdefault(flash.node_id, Shown())
        if flash.kind == "progress":
            shown.done, shown.total = flash.done, flash.total
        else:
            shown.text = _text_of(flash.value)

    def headway(self, node_id: NodeId, *, now: int) -> Headway | None:
        """Return how far a node has come that gives a stream."""
        present = None if self.rests else now
        return self._headways.of(node_id, self.projection.nodes, self.run.inputs, self._pace, now=present)

    def estimate(self, *, now: int) -> Estimate:
        """Return what earlier runs tell about how long the run will take."""
        if self._graph is None or not self.estimator.knows_enough or self.run.status in TERMINAL:
            return NOTHING
        nodes = self.projection.nodes
        found = {name: self.headway(name, now=now) for name, state in nodes.items() if state.stream is not None}
        streams = {name: headway for name, headway in found.items() if headway is not None}
        waits = tuple(self.projection.waits)
        return self.estimator.estimate(
            moment_of(self.run, nodes, waits, streams, self._pace, self._graph, now=now, is_driven=not self.rests)
        )

    def flowing(self, *, now: int) -> dict[NodeId, Flowing]:
        """Return the nodes that read or give streams, as far as they have begun, in their order."""
        known = [node.id for node in self.nodes if self.projection.node(node.id).stream is not None]
        live = self.look() if known else None
        facts: Mapping[NodeId, NodeFacts] = {} if live is None else live.nodes
        edges: dict[NodeId, list[EdgeFacts]] = {}
        for edge in () if live is None else live.edges:
            edges.setdefault(edge.target, []).append(edge)
        return {
            name: Flowing(headway=self.headway(name, now=now), facts=facts.get(name), edges=tuple(edges.get(name, ())))
            for name in known
        }

    def waits_of(self, node_id: NodeId) -> Sequence[WaitState]:
        """Return what a node waits for from outside, oldest first."""
        return self.projection.waits.of(node_id)

    def status(self, state: NodeState) -> NodeStatus:
        """Return a node's status as people see it: a body that waits is not at work, also while it is still in memory."""
        is_waiting = state.status is NodeStatus.RUNNING and state.stream is None and self.waits_of(state.node_id)
        return NodeStatus.SUSPENDED if is_waiting else state.status

    @property
    def is_stayed_with(self) -> bool:
        """Whether the run is watched also while it rests."""
        return self.stays or self._moves_by_itself

    @property
    def _moves_by_itself(self) -> bool:
        """Whether something of a run that rests goes on when its time comes, whatever else it waits for. A deadline is no such
        time: somebody may come before it, and nobody knows when."""
        if self.run.status not in WAITING:
            return False
        nodes = self.projection.nodes.values()
        is_tried_again = any(node.status is NodeStatus.SCHEDULED and node.due is not None for node in nodes)
        return is_tried_again or any(wait.kind is WaitKind.SLEEP for wait in self.projection.waits.open())

    def awaited(self) -> Awaited:
        """Return what the run waits for from outside."""
        inputs = [node.id for node in self.nodes if node.type in FED]
        suspended = [name for name in inputs if self.projection.status(name) is NodeStatus.SUSPENDED]
        return Awaited(waits=list(self.projection.waits.open()), inputs=suspended)

    def counts(self) -> Counter[NodeStatus]:
        """Return how many nodes are in each status."""
        counted = Counter(self.status(state) for state in self.projection.nodes.values())
        counted[NodeStatus.IDLE] += len(self.nodes) - sum(counted.values())
        return counted


class Display(Protocol):
    """Shows a run while it is watched."""

    interval_seconds: float
    """How often it wants to be drawn at most, and wants to hear of nothing at all."""

    def begin(self) -> None:
        """Watching begins: from here on, signals are heard."""
        ...

    def heard(self, watch: Watch, entries: Sequence[e.Recorded]) -> None:
        """More events have happened. `watch` knows of them already."""
        ...

    def draw(self, watch: Watch) -> None:
        """Time has passed."""
        ...

    def stopping(self, watch: Watch) -> None:
        """A signal has come; running bodies are given time to end."""
        ...

    def close(self) -> None:
        """Nothing more will be shown."""
        ...


def _nothing() -> None:
    return None


def _text_of(value: object) -> str:
    """Return the last line of what was published."""
    text = value if isinstance(value, str) else repr(value)
    lines = text[-2_000:].strip().splitlines()
    return lines[-1] if lines else ""
