"""Whether a run whose version is gone can go on with another one."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure.graph.model import Graph
from perdure.graph.plan import Plan
from perdure.ids import NodeId
from perdure.journal.states import NodeState


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A version with which a run could go on."""

    version: int
    graph_hash: str
    plan: Plan


def why_not_on(
    candidate: Candidate, recorded: Iterable[NodeState], *, graph_hash: str, gone: Graph | None = None
) -> list[str]:
    """Return why a run cannot go on with a version, as far as can be told; nothing if it can.

    `graph_hash` is that of the graph which the run has followed, and `gone` the graph itself, if anybody has it. Without it,
    what is recorded of a node says which it is, and whether it has to do with streams.
    """
    if candidate.graph_hash == graph_hash:
        return []
    return [problem for node in recorded if (problem := _misfit(candidate, node, gone)) is not None]


def _misfit(candidate: Candidate, node: NodeState, gone: Graph | None) -> str | None:
    node_id = node.node_id
    plan = candidate.plan.nodes.get(node_id)
    if plan is None:
        return f"node {node_id!r} is not in version {candidate.version}"
    if node.stream is not None and plan.flow is None:
        return f"node {node_id!r} works item by item, and does not in version {candidate.version}"
    if gone is None:
        return None
    was = next((found for found in gone.nodes if found.id == node_id), None)
    if was is None or was.type != plan.node.type:
        return f"node {node_id!r} is of another type in version {candidate.version}"
    if was.data != plan.node.data or _fed(gone, node_id) != _fed(candidate.plan.graph, node_id):
        return f"node {node_id!r} has other inputs in version {candidate.version}"
    return None


def _fed(graph: Graph, node_id: NodeId) -> set[tuple[str, str, str]]:
    return {(edge.source, edge.source_handle, edge.target_handle) for edge in graph.edges if edge.target == node_id}
