"""What begins again if only some items of a map do: which items of nodes that are mapped over it, and which nodes as a whole.

A node that is mapped item by item over what begins again in part, position by position, begins again for the same positions. Any
other that depends on it begins again whole: what it was given is no longer so. All else is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from perdure.graph.plan import Flow, NodePlan, Plan
from perdure.ids import NodeId
from perdure.journal.again import Again
from perdure.journal.flow import Range, ranges_of
from perdure.journal.projection import Projection
from perdure.journal.readiness import is_read_out
from perdure.journal.states import MOVING, NodeState, NodeStatus

_STOPPED = frozenset((NodeStatus.FAILED, NodeStatus.CANCELLED))


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """What begins again with some items of a node."""

    items: Mapping[NodeId, tuple[Range, ...]]
    """By node, in the order in which they were found: the positions that begin again. All others are kept."""
    whole: tuple[NodeId, ...]
    """Nodes that begin again with all that they have done."""
    sources: tuple[NodeId, ...]
    """Nodes that are kept, and whose items are read again, of which only the whole is left."""


def spread(chosen: NodeId, positions: Iterable[int], plan: Plan, projection: Projection, again: Again) -> Spread:
    """Return what begins again with items of a node."""
    ranges = tuple(ranges_of(sorted(positions)))
    found: dict[NodeId, bool] = {chosen: True}
    """Whether a node keeps its other items."""
    pending = [chosen]
    while pending:
        node_id = pending.pop()
        for other, keeps in _next(node_id, found[node_id], plan, projection, again):
            if found.get(other) is None or (found[other] and not keeps):
                found[other] = keeps
                pending.append(other)
    return Spread(
        items={node_id: ranges for node_id, keeps in found.items() if keeps},
        whole=tuple(node_id for node_id, keeps in found.items() if not keeps),
        sources=tuple(_read_again(found, plan, projection)),
    )


def why_not_chosen(chosen: NodeId, plan: Plan, projection: Projection) -> str | None:
    """Return why items of a node cannot be chosen, whichever they are; None if they can."""
    node_plan, node = plan.nodes[chosen], projection.node(chosen)
    flow = node_plan.flow
    if flow is None or not flow.mapped:
        return f"{chosen!r} is not mapped, and has no items of its own: go back to it as a whole"
    if flow.join == "latest":
        return f"what {chosen!r} is called with depends on what comes first: go back to it as a whole"
    if not node_plan.policy.ordered:
        return f"what {chosen!r} gives is not in the order of its items: go back to it as a whole"
    if (status := projection.run.status) in MOVING:
        return f"it is {status.value}, and items are chosen of a run that rests: pause or cancel it first"
    if not _has_items(node):
        return f"{chosen!r} is {node.status.value}, and items are chosen of a node that has completed, failed or was stopped"
    if node.stream is not None and node.stream.is_unread:
        return f"what {chosen!r} gives was ended before its time, because nobody read it: go back to it as a whole"
    return None


def _next(
    node_id: NodeId, keeps: bool, plan: Plan, projection: Projection, again: Again
) -> Iterable[tuple[NodeId, bool]]:
    """Yield who depends on a node that begins again, whole or for some items, and whether they keep their others."""
    node_plan = plan.nodes[node_id]
    for other in node_plan.downstream:
        yield other, False
    for reader in node_plan.readers:
        yield reader, keeps and _is_in_step(node_plan, plan.nodes[reader], projection.node(reader))
    for source in again.unread_sources(node_id):
        yield source, False


def _is_in_step(source: NodePlan, reader: NodePlan, node: NodeState) -> bool:
    """Whether each item of a reader comes of the item of the source at the same position, and what came of it is kept."""
    flow, source_id = reader.flow, source.node.id
    if flow is None or not flow.mapped or flow.join is not None or not reader.policy.ordered:
        return False
    is_one_each = source.flow is not None and not source.flow.is_generator
    are_mapped = all(edge.mode != "stream" for edge in flow.live if edge.source == source_id)
    is_whole = node.stream is None or not node.stream.is_unread
    return is_one_each and are_mapped and is_whole and _has_items(node)


def _has_items(node: NodeState) -> bool:
    """Whether a node has ended, and what came of each of its items can be told apart from the others."""
    if node.status is NodeStatus.COMPLETED:
        return node.outputs is not None
    return node.status in _STOPPED and node.stream is not None


def _read_again(found: Mapping[NodeId, bool], plan: Plan, projection: Projection) -> Iterable[NodeId]:
    sources: dict[NodeId, None] = {}
    for node_id in found:
        flow: Flow | None = plan.nodes[node_id].flow
        sources.update((edge.source, None) for edge in (() if flow is None else flow.live))
    return (name for name in sources if name not in found and is_read_out(name, plan, projection))
