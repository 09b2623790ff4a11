"""What a node's parameters get: values that arrived on edges, and templates filled with them, all encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.engine.attempts.failures import InputUnusable
from perdure.engine.attempts.values import Values, is_elsewhere
from perdure.graph.model import INPUT, Edge
from perdure.graph.plan import Binding, NodePlan
from perdure.journal.events import Encoded
from perdure.journal.projection import Projection
from perdure.journal.readiness import Arrival, arrival
from perdure.journal.values import filled, items_of, list_of, part_of
from perdure.store.codecs import content_refs

Read = Mapping[str, Encoded]
"""By edge: what it carries of a value that had to be read from blobs."""


async def gather_arguments(plan: NodePlan, projection: Projection, values: Values) -> dict[str, Encoded]:
    """Return the encoded value for each handle that edges feed. The node is ready: what has not come never will."""
    read: dict[str, Encoded] = {}
    for binding in _fed_by_edges(plan, projection):
        for edge, value in _arrived(binding, projection):
            if not _is_at_hand(edge, value):
                read[edge.id] = await _carried_from_elsewhere(edge, value, values)
    gathered = arguments_at_hand(plan, projection, read)
    assert gathered is not None, "everything that was elsewhere is read"
    return gathered


def arguments_at_hand(plan: NodePlan, projection: Projection, read: Read | None = None) -> dict[str, Encoded] | None:
    """As `gather_arguments`, with what edges carry from elsewhere in `read`; None if something is missing there."""
    arguments: dict[str, Encoded] = {}
    for binding in _fed_by_edges(plan, projection):
        if binding.kind == "single" and not (only := binding.edges[0]).path:  # what nearly every handle is
            whole = arrival(only, projection)
            if isinstance(whole, Arrival):
                continue
            if not is_elsewhere(whole):
                arguments[binding.handle] = whole
                continue
        carried: dict[str, Encoded] = {}
        for edge, value in _arrived(binding, projection):
            if _is_at_hand(edge, value):
                carried[edge.id] = _carried(edge, value)
            elif read is not None and edge.id in read:
                carried[edge.id] = read[edge.id]
            else:
                return None
        if carried:
            arguments[binding.handle] = _value_of(binding, carried)
    if projection.given:
        arguments |= projection.given.get(plan.node.id, {})
    return arguments


def _fed_by_edges(plan: NodePlan, projection: Projection) -> Sequence[Binding]:
    """Return the handles that get what edges bring: nobody has said what else they are to get."""
    if not projection.given or (given := projection.given.get(plan.node.id)) is None:
        return plan.bindings
    return [binding for binding in plan.bindings if binding.handle not in given]


def _arrived(binding: Binding, projection: Projection) -> list[tuple[Edge, Encoded]]:
    """Return the edges that make up the value of a handle, each with the whole value of its source; none if it has no value."""
    arrived: list[tuple[Edge, Encoded]] = []
    for edge in binding.edges:
        value = arrival(edge, projection)
        if not isinstance(value, Arrival):
            arrived.append((edge, value))
    if binding.kind == "first":
        return arrived[:1]
    return arrived if len(arrived) == len(binding.edges) else []


def _value_of(binding: Binding, carried: Mapping[str, Encoded]) -> Encoded:
    match binding.kind:
        case "single" | "first":
            return next(iter(carried.values()))
        case "list":
            return list_of([carried[edge.id] for edge in binding.edges])
        case "template":
            return filled(binding.template, carried)


def _is_at_hand(edge: Edge, value: Encoded) -> bool:
    """Whether no blob has to be read to know what an edge carries."""
    return not (content_refs(value) if edge.collects_parts else is_elsewhere(value))


async def _carried_from_elsewhere(edge: Edge, value: Encoded, values: Values) -> Encoded:
    """As `_carried`. Of items that are in blobs, one at a time is in memory."""
    whole = await values.opened(value)
    if not edge.collects_parts:
        return _carried(edge, whole)
    parts: list[Encoded] = []
    for position, item in enumerate(_items_of(edge, whole)):
        parts.append(_part_of_item(edge, position, await values.opened(item)))
    return list_of(parts)


def _carried(edge: Edge, value: Encoded) -> Encoded:
    if not edge.path:
        return value
    if edge.collects_parts:
        return list_of([_part_of_item(edge, position, item) for position, item in enumerate(_items_of(edge, value))])
    try:
        return part_of(value, edge.path)
    except LookupError as error:
        raise _unusable(edge, str(error.args[0])) from error


def _items_of(edge: Edge, value: Encoded) -> list[Encoded]:
    try:
        return items_of(value)
    except LookupError as error:  # somebody has said what an attempt in doubt had given
        raise _unusable(edge, str(error.args[0])) from error


def _part_of_item(edge: Edge, position: int, item: Encoded) -> Encoded:
    try:
        return part_of(item, edge.path)
    except LookupError as error:
        raise _unusable(edge, f"item {position} has none") from error


def _unusable(edge: Edge, why: str) -> InputUnusable:
    where = ".".join(str(step) for step in edge.path)
    given = f"input {edge.source_handle!r}" if edge.source == INPUT else f"what {edge.source!r} gave"
    return InputUnusable(f"handle {edge.target_handle!r} wants {where!r} of {given}, but {why}")
