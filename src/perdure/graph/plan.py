"""A graph prepared for running: who feeds whom, looked up in constant time. Built once per version, O(V + E)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from perdure.graph.declare import NodeType
from perdure.graph.model import ASK, CONDITION, FED, INPUT, ORDER, OUTPUT, START, Edge, Graph, JoinMode, Leftovers, Node
from perdure.graph.policy import Policy
from perdure.graph.templates import fill, is_mapped
from perdure.ids import NodeId

BindingKind = Literal["single", "list", "first", "template"]


class Binding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one handle gets its value from edges."""

    handle: str
    kind: BindingKind
    edges: tuple[Edge, ...]
    template: Any = None


class Flow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a node has to do with streams."""

    mapped: tuple[str, ...] = ()
    """Handles of which the node gets one item per call."""
    live: tuple[Edge, ...] = ()
    """Edges from streams that the node reads while they flow: with mode `map` item by item, with mode `stream` as a whole. With
    the modes of conditions they say for which items the node is called."""
    is_generator: bool = False
    join: JoinMode | None = None
    leftovers: Leftovers = "fail"

    @property
    def emits(self) -> bool:
        """Whether what the node gives is a stream."""
        return self.is_generator or bool(self.mapped)


class NodePlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What deciding about a node takes."""

    node: Node
    constants: Mapping[str, Any]
    """Values of handles that no edge feeds, in their JSON form."""
    bindings: tuple[Binding, ...]
    conditions: tuple[Edge, ...]
    order_only: tuple[Edge, ...]
    upstream: tuple[NodeId, ...]
    """Distinct nodes that have to settle before this one starts."""
    downstream: tuple[NodeId, ...]
    """Distinct nodes that wait for this one to settle."""
    picked: tuple[Edge, ...]
    """Edges by which a condition or the run's outputs look into a part of what this node gives."""
    optional: frozenset[str]
    """Handles that have a default."""
    policy: Policy
    waits_for_first: bool
    """Whether it may be ready before everything upstream has settled."""
    flow: Flow | None = None
    """Only of nodes that read or give streams."""
    opened_by: tuple[NodeId, ...] = ()
    """Distinct nodes that have to begin, or to be skipped, before this one starts: it reads their streams."""
    readers: tuple[NodeId, ...] = ()
    """Distinct nodes that read this one's stream while it flows."""
    from_outside: tuple[str, ...] = ()
    """Handles fed by what people or programs say to the run, perhaps in its JSON form: items that are sent to it, and answers."""

    @property
    def emits(self) -> bool:
        """Whether what the node gives is a stream."""
        return self.flow is not None and self.flow.emits


class Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A graph with its node types' policies, indexed."""

    graph: Graph
    nodes: Mapping[NodeId, NodePlan]
    outputs: tuple[Binding, ...]
    constant_outputs: Mapping[str, Any]
    """Outputs that no edge feeds, in their JSON form."""
    stages: Mapping[str, tuple[NodeId, ...]]

    # What whoever drives a run of it asks at its start, and is the same for all of them.

    awaited: Mapping[NodeId, int]
    """By node: how many others have to settle or to begin before it is looked at, while nothing has happened yet."""
    once: tuple[NodeId, ...]
    """Nodes whose bodies must not be repeated."""
    returned: frozenset[NodeId]
    """Nodes that give the run's outputs."""
    fed: tuple[NodeId, ...]
    """Nodes that are fed from outside."""
    generators: tuple[NodeId, ...]
    """Nodes that yield what they give, and are not fed from outside."""
    looked_at: tuple[Edge, ...]
    """Edges by which conditions and the run's outputs look at its inputs."""


class _Known(msgspec.Struct, frozen=True, gc=False):
    """What a node's type says about it."""

    optional: frozenset[str] = frozenset()
    policy: Policy = Policy()
    is_generator: bool = False


_NOTHING: Mapping[str, Any] = {}
_WITHOUT_VALUE = frozenset((CONDITION, ORDER))
_TOLD = FED | {ASK}
_LIVE = frozenset(("map", "stream", "when", "unless"))
"""How edges from streams are read while they flow. A condition decides item by item."""


def compile_plan(graph: Graph, types: Mapping[str, NodeType[..., Any]], *, generators: Collection[NodeId] = ()) -> Plan:
    """Prepare a valid graph. A node whose type is not in `types` gets the default policy and no optional handles, and is taken
    for a generator if it is among `generators`."""
    incoming: dict[NodeId, list[Edge]] = {node.id: [] for node in graph.nodes}
    incoming[OUTPUT] = []
    downstream: dict[NodeId, dict[NodeId, None]] = {node.id: {} for node in graph.nodes}
    picked: dict[NodeId, list[Edge]] = {}
    known = {name: _known(node_type) for name, node_type in types.items()}
    starting = {node.id: _known(_shaped(types[START], node)) for node in graph.nodes if node.type == START in types}
    unknown, generator = _Known(), _Known(is_generator=True)
    sources = _emitting(graph, known) | set(generators)
    live: dict[NodeId, list[Edge]] = {}
    readers: dict[NodeId, dict[NodeId, None]] = {}
    told = {node.id for node in graph.nodes if node.type in _TOLD}
    from_outside: dict[NodeId, dict[str, None]] = {}
    for edge in graph.edges:
        if edge.source in told and edge.target_handle not in _WITHOUT_VALUE:
            from_outside.setdefault(edge.target, {})[edge.target_handle] = None
        if edge.mode in _LIVE and edge.source in sources:
            live.setdefault(edge.target, []).append(edge)
            readers.setdefault(edge.source, {})[edge.target] = None
            continue
        incoming[edge.target].append(edge)
        if edge.path and (edge.target == OUTPUT or edge.target_handle == CONDITION):
            picked.setdefault(edge.source, []).append(edge)
        if edge.source != INPUT and edge.target != OUTPUT:
            downstream[edge.source][edge.target] = None
    nodes = {
        node.id: _node_plan(
            node,
            incoming[node.id],
            tuple(downstream[node.id]),
            tuple(picked.get(node.id, ())),
            starting.get(node.id) or known.get(node.type, generator if node.id in generators else unknown),
            live.get(node.id, ()),
            tuple(readers.get(node.id, ())),
            tuple(from_outside.get(node.id, ())),
        )
        for node in graph.nodes
    }
    fed = tuple(node.id for node in graph.nodes if node.type in FED)
    conditions = (edge for plan in nodes.values() for edge in plan.conditions)
    giving = {node_id for node_id, plan in nodes.items() if plan.flow is not None and plan.flow.is_generator}
    return Plan(
        graph=graph,
        nodes=nodes,
        outputs=tuple(_bindings(incoming[OUTPUT], graph.outputs)),
        constant_outputs=_unfed(graph.outputs, incoming[OUTPUT]),
        stages=_stages(graph),
        awaited={node_id: len(plan.upstream) + len(plan.opened_by) for node_id, plan in nodes.items()},
        once=tuple(node_id for node_id, plan in nodes.items() if plan.policy.once),
        returned=frozenset(edge.source for edge in incoming[OUTPUT]),
        fed=fed,
        generators=tuple(node_id for node_id in nodes if node_id in giving and node_id not in fed) if giving else (),
        looked_at=tuple(edge for edge in (*conditions, *incoming[OUTPUT]) if edge.source == INPUT),
    )


def _known(node_type: NodeType[..., Any]) -> _Known:
    optional = frozenset(handle.name for handle in node_type.inputs if not handle.required)
    return _Known(optional, node_type.policy, node_type.is_generator)


def _shaped(declared: NodeType[..., Any], node: Node) -> NodeType[..., Any]:
    try:
        return declared.of(node.data)
    except LookupError:  # whoever lacks the workflow leaves the run to others
        return declared


def _emitting(graph: Graph, known: Mapping[str, _Known]) -> set[NodeId]:
    """Return the nodes whose outputs are streams: generators, and what is mapped."""
    generators = {name for name, kind in known.items() if kind.is_generator}
    emitting = {
        node.id for node in graph.nodes if node.type in generators or (node.data and any(_mapped_constants(node)))
    }
    emitting.update(edge.target for edge in graph.edges if edge.mode == "map")
    return emitting


def _mapped_constants(node: Node) -> Iterator[str]:
    return (handle for handle, value in node.data.items() if is_mapped(value))


def _flow(node: Node, edges: list[Edge], live: Sequence[Edge], known: _Known) -> Flow | None:
    mapped = {edge.target_handle: None for edge in (*edges, *live) if edge.mode == "map"}
    mapped |= dict.fromkeys(_mapped_constants(node))
    if not (mapped or live or known.is_generator):
        return None
    return Flow(
        mapped=tuple(mapped),
        live=tuple(live),
        is_generator=known.is_generator,
        join=node.join,
        leftovers=node.leftovers,
    )


def _node_plan(
    node: Node,
    edges: list[Edge],
    downstream: tuple[NodeId, ...],
    picked: tuple[Edge, ...],
    known: _Known,
    live: Sequence[Edge],
    readers: tuple[NodeId, ...],
    from_outside: tuple[str, ...],
) -> NodePlan:
    valued = edges
    conditions: tuple[Edge, ...] = ()
    order_only: tuple[Edge, ...] = ()
    if any(edge.target_handle in _WITHOUT_VALUE for edge in edges):
        valued = [edge for edge in edges if edge.target_handle not in _WITHOUT_VALUE]
        conditions = tuple(edge for edge in edges if edge.target_handle == CONDITION)
        order_only = tuple(edge for edge in edges if edge.target_handle == ORDER)
    bindings = tuple(_bindings(valued, node.data))
    upstream = dict.fromkeys([edge.source for edge in edges if edge.source != INPUT])
    return NodePlan(
        node=node,
        constants=_unfed(node.data, valued) if node.data else _NOTHING,
        bindings=bindings,
        conditions=conditions,
        order_only=order_only,
        upstream=tuple(upstream),
        downstream=downstream,
        picked=picked,
        optional=known.optional,
        policy=known.policy,
        waits_for_first=any(binding.kind == "first" for binding in bindings),
        flow=_flow(node, edges, live, known),
        opened_by=tuple(dict.fromkeys([edge.source for edge in live if edge.source not in upstream])) if live else (),
        readers=readers,
        from_outside=from_outside,
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
