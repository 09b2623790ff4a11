"""A graph with everything in it looked up in constant time, however broken it is: what validation stands on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import Fault
from perdure.graph import model
from perdure.graph.calls import did_you_mean
from perdure.graph.handles import Handle
from perdure.graph.itemfailure import ERRORS, ItemFailure
from perdure.graph.model import INPUT, OUTPUT, Edge, Graph, Input, Node
from perdure.graph.policy import Policy

if TYPE_CHECKING:
    from perdure.graph.declare import Check, NodeType

EdgesByHandle = dict[str, list[Edge]]

MOST_GUESSES = 50
"""For how many types that are not known it is guessed which one was meant: that takes milliseconds for each."""

_MOST_NAMES = 1_000
"""Among how many nodes it is guessed which one was meant."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What a node type says about its handles, by name."""

    inputs: Mapping[str, Handle]
    outputs: Mapping[str, Handle]
    required: tuple[str, ...]
    open_inputs: bool
    open_outputs: bool
    is_generator: bool
    policy: Policy
    check: Check | None


class Index:
    """A graph, indexed. Of several nodes with one id, edges mean the first."""

    def __init__(self, graph: Graph, types: Mapping[str, NodeType[..., Any]]) -> None:
        self.graph = graph
        self.faults: list[Fault] = []
        """What is wrong with ids and with what edges refer to."""
        self.inputs: dict[str, Input] = {}
        self.nodes: list[Node] = list(graph.nodes)
        self.position: dict[str, int] = {}
        self.kinds: list[Kind | None] = []
        self.incoming: list[EdgesByHandle] = [{} for _ in graph.nodes]
        self.to_output: EdgesByHandle = {}
        self.successors: list[list[int]] = [[] for _ in graph.nodes]
        self._guesses: dict[str, str] = {}
        """What was meant by types that are not known, if that can be guessed."""
        self._guesses_at_nodes: dict[str, str] = {}
        self.has_incoming: list[bool] = [False for _ in graph.nodes]
        self._read_inputs()
        self._read_nodes(types)
        self._read_edges()

    def source_handle(self, edge: Edge) -> Handle | None:
        """Return the output that an edge comes from, where it is known."""
        source = self.position.get(edge.source)
        kind = None if source is None else self.kinds[source]
        return None if kind is None else kind.outputs.get(edge.source_handle)

    def _read_inputs(self) -> None:
        for given in self.graph.inputs:
            if given.name in self.inputs:
                self._fault(None, "duplicate_id", f"Two inputs are called {given.name!r}.", "Rename one of them.")
            if not given.name or given.name.startswith("$"):
                message = f"An input cannot be called {given.name!r}."
                self._fault(None, "reserved_id", message, "Use a name without a '$' in front.")
            self.inputs[given.name] = given

    def _read_nodes(self, types: Mapping[str, NodeType[..., Any]]) -> None:
        kinds: dict[NodeType[..., Any], Kind] = {}
        for position, node in enumerate(self.nodes):
            if self.position.setdefault(node.id, position) != position:
                self._fault(node.id, "duplicate_id", f"Two nodes are called {node.id!r}.", "Rename one of them.")
            if not node.id or node.id.startswith("$"):
                message = f"A node cannot be called {node.id!r}."
                self._fault(node.id, "reserved_id", message, "Use an id without a '$' in front.")
            node_type = self._type_of(node, types)
            if node_type is not None and node_type not in kinds:
                kinds[node_type] = _kind_of(node_type)
            self.kinds.append(None if node_type is None else kinds[node_type])

    def _type_of(self, node: Node, types: Mapping[str, NodeType[..., Any]]) -> NodeType[..., Any] | None:
        remedy = "Import the module that declares it (on the command line: --import FILE), or correct the name."
        if (declared := types.get(node.type)) is None:
            if node.type not in self._guesses and len(self._guesses) < MOST_GUESSES:
                self._guesses[node.type] = _guess_at(node.type, types)
            guess = self._guesses.get(node.type, "")
            message = f"Node {node.id!r} is of type {node.type!r}, which is not declared here{guess}."
            self._fault(node.id, "unknown_type", message, remedy)
            return None
        try:
            return declared.of(node.data)
        except LookupError as error:
            self._fault(node.id, "unknown_workflow", f"Node {node.id!r} {error.args[0]}.", remedy)
            return None

    def _read_edges(self) -> None:
        ids: set[str] = set()
        for edge in self.graph.edges:
            if edge.id in ids:
                message = f"Two edges are called {edge.id!r}."
                self._fault(edge.target, "duplicate_id", message, "Give one of them another id, or none.")
            ids.add(edge.id)
            source, target = self.position.get(edge.source), self.position.get(edge.target)
            if source is None:
                self.faults.extend(self._source_faults(edge))
            if target is None:
                self._read_outgoing(edge)
                continue
            self.incoming[target].setdefault(edge.target_handle, []).append(edge)
            if source is None:
                continue
            if source == target:
                remedy = "Take that away: a run never goes back."
                self._fault(edge.source, "self_loop", f"{_subject(edge)} its own node.", remedy)
            else:
                self.successors[source].append(target)
                self.has_incoming[target] = True

    def _read_outgoing(self, edge: Edge) -> None:
        if edge.target == OUTPUT:
            self.to_output.setdefault(edge.target_handle, []).append(edge)
        else:
            message = f"Edge {edge.id!r} goes to {edge.target!r}, which is not a node."
            self._fault(edge.source, "dangling_reference", message, "Add the node, or remove the edge.")

    def _source_faults(self, edge: Edge) -> Iterator[Fault]:
        if edge.source != INPUT:
            guess = self._guess_at_node(edge.source)
            message = f"{_subject(edge)} {edge.source!r}, which is no node{guess}."
            yield Fault(edge.target, "dangling_reference", message, "Add the node, or correct what refers to it.")
        elif edge.source_handle not in self.inputs:
            message = f"{_subject(edge)} the input {edge.source_handle!r}, which the workflow does not have."
            yield Fault(
                edge.target, "dangling_reference", message, "Add it to the inputs, or correct what refers to it."
            )

    def _guess_at_node(self, node_id: str) -> str:
        if node_id not in self._guesses_at_nodes and len(self._guesses_at_nodes) < MOST_GUESSES:
            among = [*self.position, *(["inputs"] if self.inputs else [])][:_MOST_NAMES]
            self._guesses_at_nodes[node_id] = did_you_mean(node_id, among)
        return self._guesses_at_nodes.get(node_id, "")

    def _fault(self, node: str | None, rule: str, message: str, remedy: str) -> None:
        self.faults.append(Fault(node, rule, message, remedy))


def outputs_of_type(node_type: NodeType[..., Any]) -> tuple[Handle, ...]:
    """Return the outputs of a node of this type, that for items which have failed included."""
    if node_type.policy.on_item_error != "collect":
        return node_type.outputs
    return (*node_type.outputs, Handle(name=ERRORS, annotation=ItemFailure))


def _subject(edge: Edge) -> str:
    """Return what an edge brings a value to. Of one whose id nobody chose it is not spoken: the short form knows no edges."""
    if edge.id.partition("#")[0] != f"{edge.source}.{edge.source_handle}>{edge.target}.{edge.target_handle}":
        return f"Edge {edge.id!r}, to {edge.target_handle!r} of {edge.target!r}, comes from"
    if edge.target == OUTPUT:
        return f"The output {edge.target_handle!r} of the workflow refers to"
    match edge.target_handle:
        case model.ORDER:
            return f"Node {edge.target!r} waits for"
        case model.CONDITION:
            return f"A condition of {edge.target!r} refers to"
        case name:
            return f"{name!r} of {edge.target!r} refers to"


def _guess_at(name: str, types: Iterable[str]) -> str:
    """Return which type was meant: one that is called so in another module, or one that is spelt almost so."""
    known, last = list(types), name.rpartition(".")[2]
    namesakes = [one for one in known if one.rpartition(".")[2] == last]
    return f" (did you mean {namesakes[0]!r}?)" if namesakes else did_you_mean(name, known)


def _kind_of(node_type: NodeType[..., Any]) -> Kind:
    return Kind(
        inputs={handle.name: handle for handle in node_type.inputs},
        outputs={handle.name: handle for handle in outputs_of_type(node_type)},
        required=tuple(handle.name for handle in node_type.inputs if handle.required),
        open_inputs=node_type.open_inputs,
        open_outputs=node_type.open_outputs,
        is_generator=node_type.is_generator,
        policy=node_type.policy,
        check=node_type.check,
    )
