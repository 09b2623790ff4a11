"""What can be wrong with a graph. Every fault is found at once, in time proportional to nodes and edges.

| rule | what it finds |
|---|---|
| `unknown_type` | a node type that is not declared here |
| `unknown_workflow` | a workflow of which runs are to be started, and that is not declared here |
| `unknown_handle`, `unknown_part` | a handle that the node does not have; a part that the value cannot have |
| `doubled_handle` | a handle that is fed in more ways than it can take |
| `missing_input` | a required handle that nothing feeds |
| `dangling_reference`, `dangling_template` | an edge or template that refers to what is not there |
| `invalid_template` | a template that is not written as one |
| `duplicate_id`, `reserved_id` | an id that is used twice, or that is not for nodes |
| `self_loop`, `cycle` | nodes that wait for themselves |
| `no_entry`, `no_exit`, `unreachable` | nodes that can never start |
| `missing_output` | a workflow that promises a result and returns none |
| `incompatible_types`, `invalid_property` | a value or a constant that the handle cannot take; a result that was not promised |
| `stream_as_value`, `not_a_stream` | a stream where one value is needed, and the other way round |
| `unaligned_join` | streams mapped together that do not belong together; leftovers of what is not zipped |
| `unsafe_replay` | a node that must run at most once, where its items could come again |
| `misplaced_mode` | an edge whose mode does not fit its handle |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from perdure.errors import Fault, InvalidGraph
from perdure.graph.feeding import Feeding
from perdure.graph.index import Index
from perdure.graph.model import Graph
from perdure.graph.streams import Streams
from perdure.graph.topology import cycles, reachable_from, topological_order

if TYPE_CHECKING:
    from perdure.graph.declare import NodeType

__all__ = ["Fault", "InvalidGraph", "check", "validate"]

_MOST_IN_PATH = 12
"""How many nodes of a cycle a message names."""


def validate(graph: Graph, types: Mapping[str, NodeType[..., Any]]) -> tuple[Fault, ...]:
    """Return everything that is wrong with a graph whose nodes run these types; nothing if it can run."""
    index = Index(graph, types)
    order = topological_order(index.successors)
    streams = Streams(index, order)
    return (*index.faults, *_shape_faults(index, order), *Feeding(index, streams).faults(), *streams.faults())


def check(graph: Graph, types: Mapping[str, NodeType[..., Any]]) -> None:
    """Raise InvalidGraph, with everything that is wrong, unless the graph can run."""
    if faults := validate(graph, types):
        raise InvalidGraph(graph.name, faults)


def _shape_faults(index: Index, order: list[int]) -> Iterator[Fault]:
    if not index.nodes:
        yield Fault(None, "no_entry", "The workflow has no nodes.", "Call at least one node type in it.")
        return
    if len(order) == len(index.nodes):
        return
    entries = [position for position, fed in enumerate(index.has_incoming) if not fed]
    if not entries:
        message = "Every node waits for another one, so that none can start."
        yield Fault(None, "no_entry", message, "Leave one without edges from other nodes.")
    if all(index.successors):
        message = "Every node feeds another one, so that the run would never end."
        yield Fault(None, "no_exit", message, "Leave one without edges to other nodes.")
    circular = cycles(index.successors, set(range(len(index.nodes))) - set(order))
    for cycle in circular:
        path = _path([index.nodes[position].id for position in cycle])
        yield Fault(index.nodes[cycle[0]].id, "cycle", f"These nodes wait for each other: {path}.", "Remove an edge.")
    unreached = set(range(len(index.nodes))) - reachable_from(index.successors, entries)
    for position in sorted(unreached.difference(*circular)):
        node = index.nodes[position]
        message = f"Node {node.id!r} cannot be reached from any node that could start."
        yield Fault(node.id, "unreachable", message, "Feed it from such a node, or remove it.")


def _path(ids: list[str]) -> str:
    if len(ids) <= _MOST_IN_PATH:
        return " → ".join([*ids, ids[0]])
    return " → ".join([*ids[: _MOST_IN_PATH - 1], f"… ({len(ids) - _MOST_IN_PATH} more)", ids[-1], ids[0]])
