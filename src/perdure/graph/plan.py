"""A graph prepared for running: who feeds whom, looked up in constant time. Built once per version, O(V + E)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from perdure.graph.declare import NodeType
from perdure.graph.model import CONDITION, INPUT, ORDER, OUTPUT, Edge, Graph, Node
from perdure.graph.policy import Policy
from perdure.graph.templates import fill
from perdure.ids import NodeId

BindingKind = Literal["single", "list", "first", "template"]


class Binding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one handle gets its value from edges."""

    handle: str
    kind: BindingKind
    edges: tuple[Edge, ...]
    template: Any = None


class NodePlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What deciding about a node takes."""

    node: Node
    constants: Mapping[str, Any]
    """Values of handles that no edge feeds, in their JSON form."""
    bindings: tuple[Binding, ...]
    conditions: tuple[Edge, ...]
    order_only: tuple[Edge, ...]
    upstream: tuple[NodeId, ...]
    """Distinct nodes this one waits for."""
    downstream: tuple[NodeId, ...]
    """Distinct nodes that wait for this one."""
    picked: tuple[Edge, ...]
    """Edges by which a condition or the run's outputs look into a part of what this node gives."""
    optional: frozenset[str]
    """Handles that have a default."""
    policy: Policy
    waits_for_first: bool
    """Whether it may be ready before everything upstream has settled."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A graph with its node types' policies, indexed."""

    graph: Graph
    nodes: Mapping[NodeId, NodePlan]
    outputs: tuple[Binding, ...]
    constant_outputs: Mapping[str, Any]
    """Outputs that no edge feeds, in their JSON form."""
    stages: Mapping[str, tuple[NodeId, ...]]


class _Known(msgspec.Struct, frozen=True, gc=False):
    """What a node's type says about it."""

    optional: frozenset[str] = frozenset()
    policy: Policy = Policy()


_NOTHING: Mapping[str, Any] = {}
_WITHOUT_VALUE = frozenset((CONDITION, ORDER))


def compile_plan(graph: Graph, types: Mapping[str, NodeType[..., Any]]) -> Plan:
    """Prepare a valid graph. A node whose type is not in `types` gets the default policy and no optional handles."""
    incoming: dict[NodeId, list[Edge]] = {node.id: [] for node in graph.nodes}
    incoming[OUTPUT] = []
    downstream: dict[NodeId, dict[NodeId, None]] = {node.id: {} for node in graph.nodes}
    picked: dict[NodeId, list[Edge]] = {}
    for edge in graph.edges:
        incoming[edge.target].append(edge)
        if edge.path and (edge.target == OUTPUT or edge.target_handle == CONDITION):
            picked.setdefault(edge.source, []).append(edge)
        if edge.source != INPUT and edge.target != OUTPUT:
            downstream[edge.source][edge.target] = None
    known = {name: _known(node_type) for name, node_type in types.items()}
    unknown = _Known()
    return Plan(
        graph=graph,
        nodes={
            node.id: _node_plan(
                node,
                incoming[node.id],
                tuple(downstream[node.id]),
                tuple(picked.get(node.id, ())),
                known.get(node.type, unknown),
            )
            for node in graph.nodes
        },
        outputs=tuple(_bindings(incoming[OUTPUT], graph.outputs)),
        constant_outputs=_unfed(graph.outputs, incoming[OUTPUT]),
        stages=_stages(graph),
    )


def _known(node_type: NodeType[..., Any]) -> _Known:
    optional = frozenset(handle.name for handle in node_type.inputs if not handle.required)
    return _Known(optional, node_type.policy)


def _node_plan(
    node: Node, edges: list[Edge], downstream: tuple[NodeId, ...], picked: tuple[Edge, ...], known: _Known
) -> NodePlan:
    valued = edges
    conditions: tuple[Edge, ...] = ()
    order_only: tuple[Edge, ...] = ()
    if any(edge.target_handle in _WITHOUT_VALUE for edge in edges):
        valued = [edge for edge in edges if edge.target_handle not in _WITHOUT_VALUE]
        conditions = tuple(edge for edge in edges if edge.target_handle == CONDITION)
        order_only = tuple(edge for edge in edges if edge.target_handle == ORDER)
    bindings = tuple(_bindings(valued, node.data))
    return NodePlan(
        node=node,
        constants=_unfed(node.data, valued) if node.data else _NOTHING,
        bindings=bindings,
        conditions=conditions,
        order_only=order_only,
        upstream=tuple(dict.fromkeys([edge.source for edge in edges if edge.source != INPUT])),
        downstream=downstream,
        picked=picked,
        optional=known.optional,
        policy=known.policy,
        waits_for_first=any(binding.kind == "first" for binding in bindings),
    )


def _unfed(data: Mapping[str, Any], edges: list[Edge]) -> dict[str, Any]:
    fed = {edge.target_handle for edge in edges}
    return {handle: fill(value, str, str) for handle, value in data.items() if handle not in fed}


def _bindings(edges: list[Edge], data: Mapping[str, Any]) -> Iterator[Binding]:
    by_handle: dict[str, list[Edge]] = {}
    for edge in edges:
        by_handle.setdefault(edge.target_handle, []).append(edge)
    for handle, feeding in by_handle.items():
        template = data.get(handle)
        kind: BindingKind = "single"
        if template is not None:
            kind = "template"
        elif feeding[0].mode == "first":
            kind = "first"
        elif len(feeding) > 1:
            kind = "list"
        yield Binding(handle=handle, kind=kind, edges=tuple(feeding), template=template)


def _stages(graph: Graph) -> dict[str, tuple[NodeId, ...]]:
    stages: dict[str, list[NodeId]] = {}
    for node in graph.nodes:
        if node.stage is not None:
            stages.setdefault(node.stage, []).append(node.id)
    return {stage: tuple(members) for stage, members in stages.items()}
