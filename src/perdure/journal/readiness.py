"""Whether a node may start, must be skipped, or has to wait: a pure question to the projection."""

from __future__ import annotations

from enum import Enum

import msgspec

from perdure.graph.model import CONDITION, INPUT, Edge
from perdure.graph.plan import Binding, NodePlan, Plan
from perdure.ids import NodeId
from perdure.journal.events import Encoded
from perdure.journal.projection import Projection
from perdure.journal.states import SETTLED, NodeStatus
from perdure.journal.values import NULL, filled, is_true, list_of, part_handle, part_of, parts_or_nulls, truth_handle

_CUT = (NodeStatus.FAILED, NodeStatus.CANCELLED)
"""What becomes of a node whose stream will never be whole."""


class Ready(msgspec.Struct, frozen=True):
    """Everything the node needs is there."""


class Blocked(msgspec.Struct, frozen=True):
    """The node can never start: it is skipped."""

    reason: str


_READY = Ready()


class Arrival(Enum):
    """What an edge has brought so far, short of a value."""

    PENDING = "pending"
    EMPTY = "empty"


def readiness(plan: NodePlan, projection: Projection) -> Ready | Blocked | None:
    """Say whether the node is ready or to be skipped; None if it is too early to tell."""
    for edge in plan.conditions:
        arrived = arrival(edge, projection)
        if arrived is Arrival.PENDING:
            return None
        if arrived is Arrival.EMPTY or _is_true(edge, projection) != (edge.mode == "when"):
            return Blocked(f"the condition on {edge.source} does not hold")
    for edge in plan.order_only:
        if _is_pending(edge, projection):
            return None
        if _is_skipped(edge, projection):
            return Blocked(f"{edge.source} was skipped")
    for edge in () if plan.flow is None else plan.flow.live:
        if _is_skipped(edge, projection):
            if edge.mode == "stream" and edge.target_handle in plan.optional:
                continue
            if edge.target_handle == CONDITION:
                return Blocked(f"the condition on {edge.source} does not hold")
            return Blocked(f"nothing arrives on {edge.target_handle}")
        if not is_open(edge.source, projection):
            return None
    for binding in plan.bindings:
        state = bound(binding, projection)
        if state is Arrival.PENDING:
            return None
        if state is Arrival.EMPTY and binding.handle not in plan.optional and not _is_given(plan, binding, projection):
            return Blocked(f"nothing arrives on {binding.handle}")
    return _READY


def _is_given(plan: NodePlan, binding: Binding, projection: Projection) -> bool:
    return bool(projection.given) and binding.handle in projection.given.get(plan.node.id, {})


def is_open(source: NodeId, projection: Projection) -> bool:
    """Whether the stream of a node flows, or has come to its end."""
    node = projection.nodes.get(source)
    return node is not None and node.stream is not None and node.status not in _CUT


def is_read_out(source: NodeId, plan: Plan, projection: Projection) -> bool:
    """Whether a node has given its whole stream as one value, and nobody reads it item by item any more."""
    node = plan.nodes[source]
    return (
        node.emits
        and projection.status(source) is NodeStatus.COMPLETED
        and all(projection.status(reader) in SETTLED for reader in node.readers)
    )


def _is_true(edge: Edge, projection: Projection) -> bool:
    """Say whether what a condition looks at is true: what was recorded with it, or what its encoded form tells."""
    recorded = (projection.node(edge.source).outputs or {}).get(truth_handle(edge.source_handle, edge.path))
    return is_true(_picked(edge, projection) if recorded is None else recorded)


def arrival(edge: Edge, projection: Projection) -> Encoded | Arrival:
    """Return what the edge has brought: the whole value of its source handle."""
    if edge.source == INPUT:
        return projection.run.inputs.get(edge.source_handle, Arrival.EMPTY)
    node = projection.nodes.get(edge.source)
    if node is None or node.status not in SETTLED:
        return Arrival.PENDING
    return Arrival.EMPTY if node.outputs is None else node.outputs.get(edge.source_handle, Arrival.EMPTY)


def chosen(binding: Binding, projection: Projection) -> Edge | Arrival:
    """Return the edge of a `first` binding that counts."""
    for edge in binding.edges:
        match arrival(edge, projection):
            case Arrival.EMPTY:
                continue
            case Arrival.PENDING:
                return Arrival.PENDING
            case _:
                return edge
    return Arrival.EMPTY


def bound(binding: Binding, projection: Projection) -> Arrival | None:
    """Say whether a handle is still waiting or stays empty; None if it has what it needs."""
    if binding.kind == "first":
        edge = chosen(binding, projection)
        return edge if isinstance(edge, Arrival) else None
    outcome: Arrival | None = None
    for edge in binding.edges:
        arrived = arrival(edge, projection)
        if arrived is Arrival.PENDING:
            return arrived
        if arrived is Arrival.EMPTY:
            outcome = arrived
    return outcome


def run_outputs(plan: Plan, projection: Projection) -> dict[str, Encoded]:
    """Return the run's outputs; what was skipped is null."""
    constants = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in plan.constant_outputs.items()}
    return constants | {binding.handle: _output(binding, projection) for binding in plan.outputs}


def _output(binding: Binding, projection: Projection) -> Encoded:
    if bound(binding, projection) is not None:
        return NULL
    if binding.kind == "first":
        edge = chosen(binding, projection)
        return NULL if isinstance(edge, Arrival) else _picked(edge, projection)
    values = {edge.id: _picked(edge, projection) for edge in binding.edges}
    match binding.kind:
        case "list":
            return list_of(values.values())
        case "template":
            return filled(binding.template, values)
        case _:
            return values[binding.edges[0].id]


def _picked(edge: Edge, projection: Projection) -> Encoded:
    """Return the part of a value that an edge picks; null if there is none."""
    arrived = arrival(edge, projection)
    if isinstance(arrived, Arrival):
        return NULL
    kept = (projection.node(edge.source).outputs or {}).get(part_handle(edge.source_handle, edge.path))
    if edge.path and kept is not None:
        return kept
    try:
        return parts_or_nulls(arrived, edge.path) if edge.collects_parts else part_of(arrived, edge.path)
    except LookupError:
        return NULL


def _is_pending(edge: Edge, projection: Projection) -> bool:
    return edge.source != INPUT and projection.status(edge.source) not in SETTLED


def _is_skipped(edge: Edge, projection: Projection) -> bool:
    return edge.source != INPUT and projection.status(edge.source) is NodeStatus.SKIPPED
