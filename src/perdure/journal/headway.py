"""How far the nodes of a run have come that work item by item, as far as its rows and its log tell: the same for everybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from perdure.graph.model import DEFAULT_OUTPUT, INPUT, Edge, Graph
from perdure.graph.templates import is_mapped
from perdure.ids import NodeId
from perdure.journal.events import Encoded
from perdure.journal.pace import Pace
from perdure.journal.states import NodeState, NodeStatus

_items = msgspec.json.Decoder(list[msgspec.Raw])


class Headway(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has done that gives a stream."""

    done: int
    """Items that a generator has given, or for which a mapped node was called to the end. Those that were given up and left
    out are among them."""
    total: int | None
    """How many that will be in the end, once it is known."""
    failed: int
    """Items that were given up."""
    retrying: int
    """Items that have failed and are tried again."""
    closed: bool
    """Whether nothing follows."""
    checkpointed: int
    """How many items had been given when the last checkpoint was taken, from which another attempt would go on."""
    items_per_second: float | None
    """Of late if the node is at work, else over all its attempts; None if that cannot be said."""


class Headways:
    """Says how far each node of one graph has come."""

    def __init__(self, graph: Graph | None) -> None:
        self._joins = {} if graph is None else {node.id: node.join for node in graph.nodes}
        self._mapped: dict[NodeId, list[Edge]] = {}
        for edge in () if graph is None else graph.edges:
            if edge.mode == "map":
                self._mapped.setdefault(edge.target, []).append(edge)
        for node in () if graph is None else graph.nodes:
            if any(map(is_mapped, node.data.values())):
                self._mapped.setdefault(node.id, [])

    def of(
        self,
        node_id: NodeId,
        states: Mapping[NodeId, NodeState],
        inputs: Mapping[str, Encoded],
        pace: Pace,
        *,
        now: int | None,
    ) -> Headway | None:
        """Return how far a node has come; None if it gives no stream. `now` is the present if an engine drives the run."""
        state = states.get(node_id)
        if state is None or (stream := state.stream) is None or not self._emits(node_id, pace):
            return None
        is_at_work = now is not None and state.status is NodeStatus.RUNNING and not stream.is_closed
        rate = pace.recently(node_id, now=now) if is_at_work and now is not None else pace.overall(node_id)
        return Headway(
            done=stream.entries,
            total=stream.entries if stream.is_closed else self._total(node_id, states, inputs, pace),
            failed=stream.failed,
            retrying=len(stream.attempts),
            closed=stream.is_closed,
            checkpointed=stream.checkpointed,
            items_per_second=None if rate is None else round(rate, 3),
        )

    def _emits(self, node_id: NodeId, pace: Pace) -> bool:
        return node_id in self._mapped or pace.generates(node_id)

    def _total(
        self, node_id: NodeId, states: Mapping[NodeId, NodeState], inputs: Mapping[str, Encoded], pace: Pace
    ) -> int | None:
        """Return how many calls of a mapped node there will be. All it is mapped over is equally long, unless it takes the
        latest of each."""
        if self._joins.get(node_id) == "latest":
            return None
        keeps_holes = self._joins.get(node_id) is None
        for edge in self._mapped.get(node_id, ()):
            known = _length(inputs.get(edge.source_handle)) if edge.source == INPUT and not edge.path else None
            if (source := states.get(edge.source)) is not None:
                known = self._given(edge, source, pace, keeps_holes=keeps_holes)
            if known is not None:
                return known
        return None

    def _given(self, edge: Edge, source: NodeState, pace: Pace, *, keeps_holes: bool) -> int | None:
        """Return how many items a node has given that gives no more."""
        if not self._emits(edge.source, pace):
            is_whole = source.status is NodeStatus.COMPLETED and not edge.path
            return _length((source.outputs or {}).get(edge.source_handle)) if is_whole else None
        if source.stream is None or not source.stream.is_closed:
            return None
        is_mapped_source = edge.source in self._mapped
        if pace.generates(edge.source):
            has_one_each = not is_mapped_source and edge.source_handle == DEFAULT_OUTPUT
        else:
            has_one_each = keeps_holes
        return source.stream.entries if has_one_each else None


def _length(value: Encoded | None) -> int | None:
    """Return the length of a list that is at hand."""
    if value is None or not bytes(value).startswith(b"["):
        return None
    items: Sequence[msgspec.Raw] = _items.decode(value)
    return len(items)
