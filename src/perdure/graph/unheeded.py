"""Keys of a document that say nothing there, although whoever wrote them must have thought that they do.

Documents may hold any keys besides ours, such as a drawing's `position`. They are kept, and change nothing. A key that is almost
one of ours, or that has a meaning where workflows are written in Python, would be lost in the same silence: a retry that never
comes, an order that nobody keeps. Such keys are faults when a graph is given. Graphs that are stored are read as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from perdure.errors import Fault, InvalidGraph
from perdure.graph.model import CONDITION, ORDER, Graph
from perdure.graph.policy import Policy
from perdure.graph.reading import bare_key, nearest_key
from perdure.graph.validate import validate

if TYPE_CHECKING:
    from perdure.graph.declare import NodeType

RULE = "unknown_key"
_MOST_GUESSES = 1_000
"""For how many different keys it is guessed which one was meant: that takes a fraction of a millisecond for each."""
_LEAST_LIKENESS = 0.82
"""Just above that of `state` and `stage`, which a drawing may have beside each other."""

_WITH_EDGES = "With nodes and edges, "
_IN_SHORT_FORM = "In the short form, "
_CONDITIONS = (
    f"A condition is an edge to {CONDITION!r}, with the mode 'when' or 'unless'. The short form has no words for it."
)
_ORDERS = (
    f"{_WITH_EDGES}what a node only waits for is an edge to {ORDER!r}. {_IN_SHORT_FORM}it is one of its 'dependencies'."
)
_MODES = "How a stream meets a parameter is the 'mode' of an edge. The short form has no words for it."
_ONLY_WITH_EDGES = "The short form has no words for it: write the graph with nodes and edges."

_NODE_KEYS = {
    "stage": "",
    "data": f"{_IN_SHORT_FORM}this is 'config'.",
    "join": _ONLY_WITH_EDGES,
    "leftovers": _ONLY_WITH_EDGES,
    "config": f"{_WITH_EDGES}this is 'data'.",
    "dependencies": _ORDERS,
}
"""The keys that a node may have and need not, with what to do where the form in which they are written does not have them."""
_EDGE_KEYS = {"sourceHandle": "", "path": "", "mode": ""}
_GRAPH_KEYS = {"inputs": "", "outputs": "", "edges": ""}

_OTHER_WORDS = {
    "dependson": "dependencies",
    "depends": "dependencies",
    "needs": "dependencies",
    "configuration": "config",
}
"""What others call what we have as well."""

_CONSTRUCTS = {
    "when": _CONDITIONS,
    "unless": _CONDITIONS,
    "after": _ORDERS,
    "map": _MODES,
    "collect": _MODES,
    "first": "Alternatives are edges of the mode 'first' into one handle. The short form has no words for them.",
}
"""What there is where workflows are written in Python, and what it is in a document."""
_NODE_OPTIONS = frozenset(Policy.__struct_fields__)
_RUN_OPTIONS = {
    name: f"It is set for each run: engine.start(…, {name}=…), or --{name.replace('_', '-')} of `perdure run`."
    for name in ("durability", "on_failure", "timeout", "checkpoint_every")
}


def check_given(graph: Graph, types: Mapping[str, NodeType[..., Any]]) -> None:
    """Raise InvalidGraph, with everything that is wrong, unless a graph that is given can run and is heeded whole."""
    if faults := (*unheeded(graph), *validate(graph, types)):
        raise InvalidGraph(graph.name, faults)


def unheeded(graph: Graph) -> tuple[Fault, ...]:
    """Return what in a graph looks as if it meant something, and does not."""
    return tuple(_Search().faults(graph))


class _Search:
    """Looks at the keys of one graph. Which key was meant is guessed once for each."""

    def __init__(self) -> None:
        self._guesses: dict[tuple[str, int], str | None] = {}

    def faults(self, graph: Graph) -> Iterator[Fault]:
        for key in graph.extra:
            if remedy := self._remedy_of_graph(key):
                yield Fault(None, RULE, f"The graph has the key {key!r}, which means nothing here.", remedy)
        for node in graph.nodes:
            for key in node.extra:
                if remedy := self._remedy_of_node(key):
                    message = f"Node {node.id!r} has the key {key!r}, which means nothing here."
                    yield Fault(node.id, RULE, message, remedy)
        for edge in graph.edges:
            for key in edge.extra:
                if remedy := self._remedy_of_edge(key):
                    message = f"Edge {edge.id!r} has the key {key!r}, which means nothing here."
                    yield Fault(edge.target, RULE, message, remedy)

    def _remedy_of_graph(self, key: str) -> str | None:
        if key in _RUN_OPTIONS:
            return _RUN_OPTIONS[key]
        return _remedy_of_option(key) or self._correction(key, _GRAPH_KEYS)

    def _remedy_of_node(self, key: str) -> str | None:
        return _remedy_of_option(key) or _CONSTRUCTS.get(key) or self._correction(key, _NODE_KEYS)

    def _remedy_of_edge(self, key: str) -> str | None:
        return _CONSTRUCTS.get(key) or self._correction(key, _EDGE_KEYS)

    def _correction(self, key: str, known: Mapping[str, str]) -> str | None:
        if key in known:
            return known[key] or None
        asked = (key, id(known))
        if asked not in self._guesses:
            if len(self._guesses) >= _MOST_GUESSES:
                return None
            self._guesses[asked] = _meant(key, known)
        meant = self._guesses[asked]
        if meant is None:
            return None
        return " ".join([f"If {meant!r} is meant, correct it; else choose another word.", known[meant]]).strip()


def _remedy_of_option(key: str) -> str | None:
    if key not in _NODE_OPTIONS:
        return None
    return f"Options of a node are set on its node type, in Python: @node({key}=…)."


def _meant(key: str, known: Mapping[str, str]) -> str | None:
    """Return the key of ours that a key is almost; None if it is something else."""
    if (ours := _OTHER_WORDS.get(bare_key(key))) in known:
        return ours
    if any(
        key.startswith(ours) for ours in known
    ):  # a word of its own, such as `stageId` or `model`, which begins with `mode`
        return None
    return nearest_key(key, known, likeness=_LEAST_LIKENESS)
