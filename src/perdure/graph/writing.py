"""A graph as a document, and its content hash: equal graphs give equal bytes.

What is ours is written by structs, whose fields stand in the order of the form. What the user gives (constants, templates,
schemas, keys that are not ours) has to be plain JSON; its keys are written by the alphabet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import GraphError, UnreadableGraph
from perdure.graph.constants import is_array, is_object, is_plain
from perdure.graph.documents import plain
from perdure.graph.model import Edge, Graph, Input, Node, PathStep
from perdure.graph.shortform import write_short
from perdure.graph.wiring import sort_edges
from perdure.graph.yamls import write_yaml
from perdure.ids import digest_of

if TYPE_CHECKING:
    from perdure.graph.declare import NodeType

Arrange = Callable[[Any], Any]
"""Puts what the user has given in order."""

_TEXT = frozenset((str,))
_LISTS = frozenset(("inputs", "nodes", "edges"))
"""What a graph has several of."""


def graph_to_json(graph: Graph) -> bytes:
    """Write a graph as JSON with edges. Raises GraphError for one that holds what JSON cannot."""
    if _is_plain(graph):
        return msgspec.json.encode(_graph_form(graph, _in_order))
    try:
        document = plain(_as_objects(_graph_form(graph, _as_given)))
    except UnreadableGraph as error:
        raise GraphError(f"Workflow {graph.name!r} cannot be written: {error}") from None
    ordered = {
        key: list(map(_in_order_inside, value)) if key in _LISTS else _in_order(value)
        for key, value in document.items()
    }
    return msgspec.json.encode(ordered)


def graph_to_document(graph: Graph) -> dict[str, Any]:
    """Return a graph as plain data: keys in a fixed order, those of values by the alphabet."""
    document: dict[str, Any] = msgspec.json.decode(graph_to_json(graph))
    return document


def graph_to_yaml(graph: Graph) -> str:
    """Write a graph as YAML with edges."""
    return write_yaml(graph_to_document(graph))


def graph_to_short(graph: Graph, types: Mapping[str, NodeType[..., Any]] | None = None) -> dict[str, Any]:
    """Write a graph in the short form, as plain data. Raises NotExpressible, with all the reasons, if it has no words.

    What is written reads back as the same graph with the same `types`.
    """
    return write_short(graph, types)


def content_hash(graph: Graph) -> str:
    """Return the identity of what a graph says: the same for graphs that run alike, whatever is drawn around them."""
    content = {
        "name": graph.name,
        "inputs": [_input_form(given, _as_given) for given in graph.inputs],
        "nodes": [_node_form(node, _as_given) for node in sorted(graph.nodes, key=lambda node: node.id)],
        "edges": list(map(_edge_form, sorted(graph.edges, key=lambda edge: (edge.target, edge.target_handle)))),
        "outputs": graph.outputs,
    }
    return digest_of(msgspec.json.encode(content, order="sorted"))


class _InputForm(msgspec.Struct, omit_defaults=True, gc=False):
    name: str
    schema: Any
    default: Any = msgspec.UNSET


class _NodeForm(msgspec.Struct, omit_defaults=True, gc=False):
    id: str
    type: str
    data: Any
    stage: str | None = None
    join: str | None = None
    leftovers: str | None = None


class _EdgeForm(msgspec.Struct, omit_defaults=True, rename="camel", gc=False):
    id: str
    source: str
    source_handle: str
    target: str
    target_handle: str
    mode: str | None = None
    path: tuple[PathStep, ...] = ()


def _graph_form(graph: Graph, arrange: Arrange) -> dict[str, Any]:
    form: dict[str, Any] = {"name": graph.name}
    if graph.inputs:
        form["inputs"] = [_input_form(given, arrange) for given in graph.inputs]
    form["nodes"] = [_with_extra(_node_form(node, arrange), node.extra, arrange) for node in graph.nodes]
    edges = sort_edges(graph.nodes, graph.edges)
    form["edges"] = [_with_extra(_edge_form(edge), edge.extra, arrange) for edge in edges]
    if graph.outputs:
        form["outputs"] = arrange(graph.outputs)
    whole: dict[str, Any] = _with_extra(form, graph.extra, arrange)
    return whole


def _input_form(given: Input, arrange: Arrange) -> _InputForm:
    return _InputForm(given.name, arrange(given.schema), arrange(given.default))


def _node_form(node: Node, arrange: Arrange) -> _NodeForm:
    data = arrange(node.data) if node.data else node.data
    leftovers = None if node.leftovers == "fail" else node.leftovers
    return _NodeForm(node.id, node.type, data, node.stage, node.join, leftovers)


def _edge_form(edge: Edge) -> _EdgeForm:
    return _EdgeForm(
        edge.id, edge.source, edge.source_handle, edge.target, edge.target_handle, edge.mode, tuple(edge.path)
    )


def _with_extra(form: Any, extra: Mapping[str, Any], arrange: Arrange) -> Any:
    """Return our keys, then the others by the alphabet. Where both have one, it is ours."""
    if not extra:
        return form
    ours = _as_objects(form)
    others = {key: arrange(extra[key]) for key in sorted(extra, key=str)}
    return {**ours, **others, **ours}


def _as_objects(form: Any) -> Any:
    """Return a form, and those in the lists of a graph's, as objects of the keys that would be written."""
    if not is_object(form):
        return _as_object(form)
    return {
        key: list(map(_as_object, value)) if key in _LISTS and is_array(value) else value for key, value in form.items()
    }


def _as_object(form: Any) -> Any:
    """Return a form as an object. What is one already may have keys of the user's that are called as ours are."""
    if not isinstance(form, msgspec.Struct):
        return form
    keys, values = form.__struct_encode_fields__, msgspec.structs.astuple(form)
    given = zip(keys, values, _defaults_of(form), strict=True)
    return {key: value for key, value, default in given if value is not default}


def _defaults_of(form: msgspec.Struct) -> tuple[Any, ...]:
    defaults = form.__struct_defaults__
    return (msgspec.NODEFAULT,) * (len(form.__struct_fields__) - len(defaults)) + defaults


def _in_order_inside(item: dict[str, Any]) -> dict[str, Any]:
    return {key: _in_order(value) for key, value in item.items()}


def _in_order(value: Any) -> Any:
    """Return the value with the keys of its objects in the order of the alphabet."""
    if is_object(value):
        return {key: _in_order(value[key]) for key in sorted(value, key=str)}
    return [_in_order(member) for member in value] if is_array(value) else value


def _as_given(value: Any) -> Any:
    return value


def _is_plain(graph: Graph) -> bool:
    """Whether everything in the graph is what JSON holds as it is."""
    return _are_texts(_texts(graph)) and is_plain(list(_given(graph)))


def _texts(graph: Graph) -> list[Any]:
    texts: list[Any] = [graph.name]
    for node in graph.nodes:
        texts += (node.id, node.type, node.stage or "", node.join or "", node.leftovers)
    for edge in graph.edges:
        texts += (edge.id, edge.source, edge.source_handle, edge.target, edge.target_handle, edge.mode or "")
    return texts


def _are_texts(values: Sequence[Any]) -> bool:
    if not _TEXT.issuperset(map(type, values)):
        return False
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        return False
    return True


def _given(graph: Graph) -> Iterator[Any]:
    """Yield what the user may have put there, where there is anything."""
    yield from (graph.outputs, graph.extra)
    for given in graph.inputs:
        yield given.name
        yield given.schema
        if given.default is not msgspec.UNSET:
            yield given.default
    for node in graph.nodes:
        if node.data:
            yield node.data
        if node.extra:
            yield node.extra
    for edge in graph.edges:
        if edge.path:
            yield list(edge.path)
        if edge.extra:
            yield edge.extra
