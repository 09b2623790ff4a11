"""What a node's parameters get: values that arrived on edges, and templates filled with them, all encoded."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.engine.failures import InputUnusable
from perdure.engine.values import Values, is_elsewhere
from perdure.graph.model import INPUT, Edge
from perdure.graph.plan import Binding, NodePlan
from perdure.journal.events import Encoded
from perdure.journal.projection import Projection
from perdure.journal.readiness import Arrival, arrival
from perdure.journal.values import filled, list_of, part_of

Brought = Mapping[str, Encoded]
"""By edge: the whole value of its source handle, read if it is in a blob."""


async def gather_arguments(plan: NodePlan, projection: Projection, values: Values) -> dict[str, Encoded]:
    """Return the encoded value for each handle that edges feed. The node is ready: what has not come never will."""
    opened: dict[str, Encoded] = {}
    for binding in plan.bindings:
        for edge in binding.edges:
            arrived = arrival(edge, projection)
            if not isinstance(arrived, Arrival) and is_elsewhere(arrived):
                opened[edge.id] = await values.opened(arrived)
    gathered = arguments_at_hand(plan, projection, opened)
    assert gathered is not None, "everything that was elsewhere is open"
    return gathered


def arguments_at_hand(
    plan: NodePlan, projection: Projection, opened: Mapping[str, Encoded] | None = None
) -> dict[str, Encoded] | None:
    """As `gather_arguments`, with values from elsewhere by edge in `opened`; None if one is missing there."""
    arguments: dict[str, Encoded] = {}
    for binding in plan.bindings:
        brought: dict[str, Encoded] = {}
        for edge in binding.edges:
            arrived = arrival(edge, projection)
            if isinstance(arrived, Arrival):
                continue
            if is_elsewhere(arrived):
                if opened is None or edge.id not in opened:
                    return None
                arrived = opened[edge.id]
            brought[edge.id] = arrived
        if brought and (binding.kind == "first" or len(brought) == len(binding.edges)):
            arguments[binding.handle] = _value_of(binding, brought)
    return arguments


def _value_of(binding: Binding, brought: Brought) -> Encoded:
    match binding.kind:
        case "single":
            return _carried(binding.edges[0], brought)
        case "first":
            return _carried(next(edge for edge in binding.edges if edge.id in brought), brought)
        case "list":
            return list_of([_carried(edge, brought) for edge in binding.edges])
        case "template":
            return filled(binding.template, {edge.id: _carried(edge, brought) for edge in binding.edges})


def _carried(edge: Edge, brought: Brought) -> Encoded:
    value = brought[edge.id]
    if not edge.path:
        return value
    try:
        return part_of(value, edge.path)
    except LookupError as error:
        where = ".".join(str(step) for step in edge.path)
        given = f"input {edge.source_handle!r}" if edge.source == INPUT else f"what {edge.source!r} gave"
        raise InputUnusable(f"handle {edge.target_handle!r} wants {where!r} of {given}, but {error.args[0]}") from error
