"""How two graphs differ, node by node: what was added, removed and changed, and in what.

What an edge or a node is called by a drawing, and in which order nodes are written, makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from perdure.graph.constants import is_array, is_object
from perdure.graph.model import OUTPUT, Edge, Graph, Input, Node
from perdure.graph.templates import REF, VALUE, marker_of
from perdure.ids import NodeId

Aspect = Literal["type", "data", "edges", "join", "stage"]
"""What may be otherwise about a node: what it runs, its constants and templates, what feeds it, how streams meet there, and
the stage that it is shown in."""

Way = tuple[str, str, str | None, tuple[str | int, ...]]
"""What an edge brings to a handle: from which node and handle, how, and which part."""


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A node that both graphs have and that is not the same in them."""

    node_id: NodeId
    aspects: tuple[Aspect, ...]
    handles: tuple[str, ...]
    """Those that are fed otherwise, by data or by edges."""

    @property
    def matters(self) -> bool:
        """Whether it may give something else for that."""
        return self.aspects != ("stage",)


class GraphDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How one graph differs from another."""

    added: tuple[NodeId, ...]
    removed: tuple[NodeId, ...]
    changed: tuple[NodeChange, ...]
    same: tuple[NodeId, ...]
    added_edges: tuple[Edge, ...]
    removed_edges: tuple[Edge, ...]
    inputs: tuple[str, ...]
    """Inputs of the workflow that were added, removed or changed."""
    outputs: tuple[str, ...]
    """Outputs of the workflow that are fed otherwise."""

    @property
    def is_none(self) -> bool:
        return not (self.added or self.removed or self.changed or self.inputs or self.outputs)


def differ(one: Graph, other: Graph) -> GraphDifference:
    """Compare two graphs. Nodes and edges are told in the order in which the graphs have them."""
    before, after = _Index(one), _Index(other)
    shared = [node_id for node_id in after.nodes if node_id in before.nodes]
    changes = [change for node_id in shared if (change := _change(node_id, before, after)) is not None]
    changed = {change.node_id for change in changes}
    return GraphDifference(
        added=tuple(node_id for node_id in after.nodes if node_id not in before.nodes),
        removed=tuple(node_id for node_id in before.nodes if node_id not in after.nodes),
        changed=tuple(changes),
        same=tuple(node_id for node_id in shared if node_id not in changed),
        added_edges=tuple(_not_among(other.edges, one.edges)),
        removed_edges=tuple(_not_among(one.edges, other.edges)),
        inputs=tuple(_differing(_inputs(one), _inputs(other))),
        outputs=tuple(
            dict.fromkeys(
                [*_differing(before.fed(OUTPUT), after.fed(OUTPUT)), *_differing(before.results, after.results)]
            )
        ),
    )


class _Index:
    """A graph by node, with everything named by what it does."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: dict[NodeId, Node] = {node.id: node for node in graph.nodes}
        self._fed: dict[NodeId, dict[str, list[Way]]] = {}
        self._places: dict[NodeId, dict[str, int]] = {}
        for edge in graph.edges:
            ways = self._fed.setdefault(edge.target, {}).setdefault(edge.target_handle, [])
            self._places.setdefault(edge.target, {})[edge.id] = len(ways)
            ways.append(_way(edge))
        self.results = self._placed(OUTPUT, graph.outputs)

    def fed(self, node_id: NodeId) -> Mapping[str, list[Way]]:
        """Return what edges bring to each handle of a node."""
        return self._fed.get(node_id, {})

    def data(self, node_id: NodeId) -> dict[str, Any]:
        """Return the constants and templates of a node."""
        return self._placed(node_id, self.nodes[node_id].data)

    def _placed(self, node_id: NodeId, data: Mapping[str, Any]) -> dict[str, Any]:
        places = self._places.get(node_id, {})
        return {handle: _placed(value, places) for handle, value in data.items()}


def _change(node_id: NodeId, before: _Index, after: _Index) -> NodeChange | None:
    one, other = before.nodes[node_id], after.nodes[node_id]
    data = list(_differing(before.data(node_id), after.data(node_id)))
    edges = list(_differing(before.fed(node_id), after.fed(node_id)))
    found: list[tuple[Aspect, bool]] = [
        ("type", one.type != other.type),
        ("data", bool(data)),
        ("edges", bool(edges)),
        ("join", (one.join, one.leftovers) != (other.join, other.leftovers)),
        ("stage", one.stage != other.stage),
    ]
    aspects: tuple[Aspect, ...] = tuple(aspect for aspect, differs in found if differs)
    if not aspects:
        return None
    return NodeChange(node_id=node_id, aspects=aspects, handles=tuple(dict.fromkeys([*data, *edges])))


def _way(edge: Edge) -> Way:
    return edge.source, edge.source_handle, edge.mode, tuple(edge.path)


def _placed(template: Any, places: Mapping[str, int]) -> Any:
    """Return a template in which edges are named by their place among those of its handle."""
    match marker_of(template):
        case "$ref":
            return {REF: places.get(template[REF], template[REF])}
        case "$value":
            return {VALUE: template[VALUE]}
        case _:
            pass
    if is_object(template):
        return {key: _placed(member, places) for key, member in template.items()}
    return [_placed(member, places) for member in template] if is_array(template) else template


def _inputs(graph: Graph) -> dict[str, Input]:
    return {declared.name: declared for declared in graph.inputs}


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*one, *other]):
        if name not in one or name not in other or _as_json(one[name]) != _as_json(other[name]):
            yield name


def _as_json(value: Any) -> bytes:
    """Return what JSON has for a value: 1 is not True, and 1.0 is not 1."""
    return msgspec.json.encode(value, order="sorted")


def _not_among(edges: Iterable[Edge], others: Iterable[Edge]) -> Iterator[Edge]:
    known = {(_way(edge), edge.target, edge.target_handle) for edge in others}
    return (edge for edge in edges if (_way(edge), edge.target, edge.target_handle) not in known)
