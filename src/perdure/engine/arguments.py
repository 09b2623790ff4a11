"""What a node's parameters get: constants, values that arrived on edges, and templates filled with them, all encoded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from perdure.engine.failures import InputUnusable
from perdure.graph.model import Edge
from perdure.graph.plan import Binding, NodePlan
from perdure.journal.events import Encoded
from perdure.journal.projection import Projection
from perdure.journal.readiness import Arrival, arrival, bound, chosen
from perdure.journal.values import filled, list_of, part_of

Open = Callable[[Encoded], Awaitable[Encoded]]
"""Return the value itself where it is a reference to a blob that holds all of it."""


async def gather_arguments(plan: NodePlan, projection: Projection, opened: Open) -> dict[str, Encoded]:
    """Return the encoded value for each handle that edges feed."""
    arguments: dict[str, Encoded] = {}
    for binding in plan.bindings:
        if bound(binding, projection) is None:
            arguments[binding.handle] = await _value_of(binding, projection, opened)
    return arguments


async def _value_of(binding: Binding, projection: Projection, opened: Open) -> Encoded:
    match binding.kind:
        case "single":
            return await _carried(binding.edges[0], projection, opened)
        case "first":
            edge = chosen(binding, projection)
            assert isinstance(edge, Edge)
            return await _carried(edge, projection, opened)
        case "list":
            return list_of([await _carried(edge, projection, opened) for edge in binding.edges])
        case "template":
            values = {edge.id: await _carried(edge, projection, opened) for edge in binding.edges}
            return filled(binding.template, values)


async def _carried(edge: Edge, projection: Projection, opened: Open) -> Encoded:
    arrived = arrival(edge, projection)
    assert not isinstance(arrived, Arrival)
    value = await opened(arrived)
    if not edge.path:
        return value
    try:
        return part_of(value, edge.path)
    except LookupError as error:
        where = ".".join(str(step) for step in edge.path)
        raise InputUnusable(
            f"handle {edge.target_handle!r} wants {where!r} of what {edge.source!r} gave, but {error.args[0]}"
        ) from error
