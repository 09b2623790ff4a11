"""Whether a run can go on on another version of its workflow, node by node and with reasons. Pure.

What has happened in a run counts on the other version where a node is the same there and so is everything before it. What has
happened and does not count would have to happen again; where that must not be, the run cannot go on so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

import msgspec

from perdure.graph.differing import differ
from perdure.graph.model import CONDITION, FED, INPUT, ORDER, OUTPUT, Edge
from perdure.graph.ordering import nodes_in_order
from perdure.graph.plan import NodePlan, Plan
from perdure.graph.writing import content_hash
from perdure.ids import NodeId
from perdure.journal.again import Again, has_begun
from perdure.journal.projection import Projection
from perdure.journal.readiness import is_open, is_read_out
from perdure.journal.states import ENDED, SETTLED, NodeStatus
from perdure.journal.values import part_handle, truth_handle

Verdict = Literal["kept", "again", "to_come", "left", "impossible"]
"""What becomes of a node: what it has done counts; it would begin again; nothing has happened to it yet; it is not in the other
version, and what it has given is not used any more; or it cannot be."""


class NodeOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a node on the other version."""

    node_id: NodeId
    verdict: Verdict
    reason: str = ""


class Compatibility(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a run can go on on a version."""

    workflow: str
    version: int
    """The version that it follows."""
    other: int
    """The version that it would follow."""
    nodes: tuple[NodeOutlook, ...]
    """Those that depend on others come after them; nodes that the other version does not have come last."""
    problems: tuple[str, ...] = ()
    """What is wrong beside the nodes."""

    @property
    def is_possible(self) -> bool:
        """Whether the run can go on, if what has to be done again may be."""
        return not self.problems and not self.of("impossible")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it cannot go on, all of it."""
        return (
            *self.problems,
            *(f"{node.node_id}: {node.reason}" for node in self.nodes if node.verdict == "impossible"),
        )

    def of(self, verdict: Verdict) -> tuple[NodeId, ...]:
        """Return the nodes with this verdict."""
        return tuple(node.node_id for node in self.nodes if node.verdict == verdict)


def compatibility(
    projection: Projection,
    one: Plan | None,
    other: Plan,
    *,
    version: int,
    types: Collection[str],
    begins: Collection[NodeId] = (),
) -> Compatibility:
    """Say whether a run that follows `one` can go on on `other`, which is that version. `types` are the node types that are
    known: of others nobody can say whether they may run twice. `begins` are nodes that are to begin again although they may be
    the same.

    If nobody knows what the run has followed (`one` is None), it can go on only if all that has happened could have happened on
    `other`, and nothing has to happen again. If `other` says the same as what it has followed, that is known.
    """
    if one is None and content_hash(other.graph) == projection.run.graph_hash:
        one = other
    run = projection.run
    found = _outlooks(projection, one, other, types, begins) if one is not None else _guesses(projection, other, types)
    return Compatibility(
        workflow=run.workflow,
        version=run.version,
        other=version,
        nodes=tuple(found),
        problems=tuple(_missing_inputs(projection, other)),
    )


def _outlooks(
    projection: Projection, one: Plan, other: Plan, types: Collection[str], begins: Collection[NodeId]
) -> Iterator[NodeOutlook]:
    causes = dict.fromkeys(begins, "it is to begin again") | differing_nodes(projection, one, other)
    again = Again(other, projection).begin_with(*causes)
    touched = {node_id for node_id, node in projection.nodes.items() if node.status is not NodeStatus.IDLE}
    repeated = {node_id for node_id in (*causes, *again) if node_id in touched}
    read_out = {node_id for node_id in one.nodes if node_id not in repeated and is_read_out(node_id, one, projection)}
    for node in nodes_in_order(other.graph):
        if node.id in touched and node.id not in repeated:
            yield _kept(node.id, projection)
        elif (source := _source_among(read_out, other.nodes[node.id])) is not None:
            reason = f"it would read {source!r} item by item, whose items are not kept"
            yield NodeOutlook(node_id=node.id, verdict="impossible", reason=reason)
        elif node.id not in touched:
            yield NodeOutlook(node_id=node.id, verdict="to_come")
        elif (problem := _why_not_again(node.id, projection, other, types)) is not None:
            yield NodeOutlook(node_id=node.id, verdict="impossible", reason=problem)
        else:
            reason = causes.get(node.id) or f"it depends on {_nearest(node.id, other, repeated)!r}"
            yield NodeOutlook(node_id=node.id, verdict="again", reason=reason)
    for node_id, state in projection.nodes.items():
        if node_id in touched and node_id not in other.nodes:
            then = "what it has given is not used" if state.status in ENDED else "it would be stopped"
            yield NodeOutlook(node_id=node_id, verdict="left", reason=f"the other version does not have it, and {then}")


def _kept(node_id: NodeId, projection: Projection) -> NodeOutlook:
    status = projection.status(node_id)
    is_stopped = status in (NodeStatus.FAILED, NodeStatus.CANCELLED)
    reason = f"it is {status.value}, and is tried again if the run goes on" if is_stopped else ""
    return NodeOutlook(node_id=node_id, verdict="kept", reason=reason)


def differing_nodes(projection: Projection, one: Plan, other: Plan) -> dict[NodeId, str]:
    """Return the nodes that have happened, and that are something else on the other version, each with what is."""
    found: dict[NodeId, str] = {}
    for change in differ(one.graph, other.graph).changed:
        if change.matters and projection.status(change.node_id) is not NodeStatus.IDLE:
            handles = f" ({', '.join(change.handles)})" if change.handles else ""
            found[change.node_id] = f"its {' and '.join(change.aspects)}{handles} changed"
    looked = set(_looks(one))
    for edge in _looks(other):
        if edge not in looked and edge.source not in found and not _can_be_looked_at(edge, projection):
            found[edge.source] = "the other version looks into what it has given, which was not recorded for that"
    return found


def _why_not_again(node_id: NodeId, projection: Projection, plan: Plan, types: Collection[str]) -> str | None:
    node, node_plan = projection.node(node_id), plan.nodes[node_id]
    if has_begun(node) and node_plan.policy.once:
        return "it must run at most once, and has begun"
    if node_plan.node.type in FED and node.started_at is not None:
        return "it is fed from outside, and what has come for it cannot be had again"
    if has_begun(node) and node_plan.node.type not in types:
        return f"it would run again, and its type {node_plan.node.type!r} is not here to say whether it may"
    return None


def _source_among(nodes: Collection[NodeId], plan: NodePlan) -> NodeId | None:
    """Return one of these nodes whose stream a node reads while it flows."""
    return next((edge.source for edge in (() if plan.flow is None else plan.flow.live) if edge.source in nodes), None)


def _nearest(node_id: NodeId, plan: Plan, repeated: Collection[NodeId]) -> NodeId:
    """Return a node that begins again and because of which this one does."""
    node = plan.nodes[node_id]
    before = (*node.upstream, *node.opened_by)
    return next((source for source in (*before, *node.readers) if source in repeated), node_id)


def _guesses(projection: Projection, plan: Plan, types: Collection[str]) -> Iterator[NodeOutlook]:
    """Say of each node whether what has happened to it could have happened on a version."""
    unlike = {edge.source: edge for edge in plan.graph.edges if not _could_feed(edge, projection)}
    unseen = {look.source for look in _looks(plan) if not _can_be_looked_at(look, projection)}
    completed = {node_id for node_id in plan.nodes if projection.status(node_id) is NodeStatus.COMPLETED}
    for node in nodes_in_order(plan.graph):
        if projection.status(node.id) is NodeStatus.IDLE:
            source = _source_among(completed, plan.nodes[node.id])
            reason = (
                ""
                if source is None
                else f"it would read {source!r} item by item, and nobody knows if its items are kept"
            )
            yield NodeOutlook(node_id=node.id, verdict="impossible" if reason else "to_come", reason=reason)
        elif (problem := _why_not_so(node.id, projection, plan, types)) is not None:
            yield NodeOutlook(node_id=node.id, verdict="impossible", reason=problem)
        elif (edge := unlike.get(node.id)) is not None:
            reason = (
                f"it has given nothing on {edge.source_handle!r}, from which the version has an edge to {edge.target!r}"
            )
            yield NodeOutlook(node_id=node.id, verdict="impossible", reason=reason)
        elif node.id in unseen:
            reason = "the version looks into what it has given, which was not recorded for that"
            yield NodeOutlook(node_id=node.id, verdict="impossible", reason=reason)
        else:
            yield _kept(node.id, projection)
    for node_id, state in projection.nodes.items():
        if node_id not in plan.nodes and state.status is not NodeStatus.IDLE:
            yield NodeOutlook(
                node_id=node_id, verdict="impossible", reason="it has happened, and the version has no such node"
            )


def _why_not_so(node_id: NodeId, projection: Projection, plan: Plan, types: Collection[str]) -> str | None:
    node, node_plan = projection.node(node_id), plan.nodes[node_id]
    unsettled = [source for source in node_plan.upstream if projection.status(source) not in SETTLED]
    unopened = [source for source in node_plan.opened_by if not _has_opened(source, projection)]
    early = [*(() if node_plan.waits_for_first else unsettled), *unopened]
    if early and node.status is not NodeStatus.SKIPPED:
        return f"it has begun before {early[0]!r} had ended"
    is_known = node_plan.node.type in types and node.status is NodeStatus.COMPLETED
    if is_known and (node.stream is not None) != node_plan.emits:
        return f"it has given {'a stream' if node.stream is not None else 'one value'}, unlike the version's"
    return None


def _could_feed(edge: Edge, projection: Projection) -> bool:
    """Whether what a node has given may have gone along an edge. What it has not given leaves the target out."""
    source = projection.node(edge.source)
    if source.status is not NodeStatus.COMPLETED or edge.source == INPUT or edge.target_handle == ORDER:
        return True
    is_left_out = edge.target != OUTPUT and projection.status(edge.target) is NodeStatus.SKIPPED
    return is_left_out or edge.source_handle in (source.outputs or {})


def _has_opened(source: NodeId, projection: Projection) -> bool:
    return projection.status(source) in SETTLED or is_open(source, projection)


class _Look(msgspec.Struct, frozen=True):
    """A part of what a node gives that decides about others, or is one of the run's outputs."""

    source: NodeId
    handle: str
    path: tuple[str | int, ...]
    is_condition: bool


def _looks(plan: Plan) -> Iterator[_Look]:
    for edge in plan.graph.edges:
        is_condition = edge.target_handle == CONDITION
        if edge.source != INPUT and (is_condition or (edge.target == OUTPUT and edge.path)):
            yield _Look(edge.source, edge.source_handle, tuple(edge.path), is_condition)


def _can_be_looked_at(look: _Look, projection: Projection) -> bool:
    """Whether what a node has given tells by its stored form, or was recorded beside it. What has not been given yet will be."""
    node = projection.node(look.source)
    if node.status is not NodeStatus.COMPLETED or node.outputs is None:
        return True
    recorded = {truth_handle(look.handle, look.path) if look.is_condition else part_handle(look.handle, look.path)}
    value = node.outputs.get(look.handle)
    return value is None or not bytes(value).startswith(b'{"$":') or not recorded.isdisjoint(node.outputs)


def _missing_inputs(projection: Projection, plan: Plan) -> Iterator[str]:
    given = projection.run.inputs
    wanted = dict.fromkeys(edge.source_handle for edge in plan.graph.edges if edge.source == INPUT)
    for name in wanted:
        if name not in given:
            yield f"the version has an input {name!r}, which the run was not given"
