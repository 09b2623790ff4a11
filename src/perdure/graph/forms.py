"""The forms in which a graph is read. `writing` writes it.

- JSON or YAML with edges: `{"name", "inputs", "nodes": [{"id", "type", "data", "stage", "join", "leftovers"}], "edges":
  [{"id", "source", "sourceHandle", "target", "targetHandle", "mode", "path"}], "outputs"}`. Only `name`, `nodes` and, of a node
  and an edge, what says which and where are needed. Other keys are kept in `extra`.
- JSON or YAML in the short form: `shortform` describes it.

The same graph gives equal objects whichever way it is written, and equal bytes when it is written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from perdure.errors import UnreadableGraph
from perdure.graph.constants import is_array, is_object
from perdure.graph.documents import parse_json, plain
from perdure.graph.model import DEFAULT_OUTPUT, Edge, EdgeMode, Graph, JoinMode, Leftovers, Node, PathStep
from perdure.graph.reading import Reader
from perdure.graph.shortform import is_short, read_short
from perdure.graph.wiring import EdgeIds, sort_edges
from perdure.graph.yamls import parse_yaml
from perdure.ids import NodeId

if TYPE_CHECKING:
    from perdure.graph.declare import NodeType

Types = Mapping[str, "NodeType[..., Any]"]

_GRAPH_KEYS = ("name", "inputs", "nodes", "edges", "outputs")
_NODE_KEYS = ("id", "type", "data", "stage", "join", "leftovers")
_EDGE_KEYS = ("id", "source", "sourceHandle", "target", "targetHandle", "mode", "path")


class Readable(Protocol):
    """A file that can be read, such as a `pathlib.Path`."""

    def read_bytes(self) -> bytes: ...


def load_graph(source: str | bytes | Readable, types: Types | None = None) -> Graph:
    """Read a graph from a text, or from a file, in JSON or YAML, with edges or in the short form.

    Raises UnreadableGraph with all that is wrong with the document. `types` tell output handles from parts of values in
    the short form.
    """
    text = source if isinstance(source, str | bytes) else source.read_bytes()
    start = text.lstrip()[:1]
    if start in ("{", "[", b"{", b"["):
        return graph_from_json(text, types)
    return graph_from_yaml(text, types)


def graph_from_json(document: str | bytes | Mapping[str, Any], types: Types | None = None) -> Graph:
    """Read a graph from a JSON text, or from what one says."""
    parsed = parse_json(document) if isinstance(document, str | bytes) else plain(document)
    return _read(parsed, types)


def graph_from_yaml(text: str | bytes, types: Types | None = None) -> Graph:
    """Read a graph from a YAML text."""
    return _read(parse_yaml(text), types)


def _read(document: Any, types: Types | None) -> Graph:
    reader = Reader()
    if not is_object(document):
        reader.other("document", "an object with a name and nodes", document)
        raise UnreadableGraph(reader.faults)
    graph = read_short(document, types, reader) if is_short(document) else _read_with_edges(document, reader)
    if reader.faults:
        raise UnreadableGraph(reader.faults)
    return graph


def _read_with_edges(document: dict[str, Any], reader: Reader) -> Graph:
    nodes = tuple(_read_node(item, place, reader) for place, item in reader.objects(document, "nodes", required=True))
    return Graph(
        name=reader.text(document, "name", ""),
        nodes=nodes,
        edges=sort_edges(nodes, _read_edges(document, reader)),
        inputs=reader.inputs(document),
        outputs=reader.mapping(document, "outputs", ""),
        extra=reader.others(document, _GRAPH_KEYS),
    )


def _read_node(item: dict[str, Any], place: str, reader: Reader) -> Node:
    return Node(
        id=NodeId(reader.text(item, "id", place)),
        type=reader.text(item, "type", place),
        data=reader.mapping(item, "data", place),
        stage=reader.optional_text(item, "stage", place),
        join=reader.choice(item, "join", place, JoinMode),
        leftovers=reader.choice(item, "leftovers", place, Leftovers) or "fail",
        extra=reader.others(item, _NODE_KEYS),
    )


def _read_edges(document: dict[str, Any], reader: Reader) -> list[Edge]:
    items = list(reader.objects(document, "edges"))
    ids = EdgeIds(identity for _, item in items if isinstance(identity := item.get("id"), str))
    return [_read_edge(item, place, reader, ids) for place, item in items]


def _read_edge(item: dict[str, Any], place: str, reader: Reader, ids: EdgeIds) -> Edge:
    for wrong, right in (("source_handle", "sourceHandle"), ("target_handle", "targetHandle")):
        if wrong in item:
            reader.fault(f"{place}.{wrong}", f"this is written {right!r}.")
    source = reader.text(item, "source", place)
    source_handle = reader.optional_text(item, "sourceHandle", place) or DEFAULT_OUTPUT
    target = reader.text(item, "target", place)
    target_handle = reader.text(item, "targetHandle", place)
    given = reader.optional_text(item, "id", place)
    return Edge(
        id=ids.take(source, source_handle, target, target_handle) if given is None else given,
        source=NodeId(source),
        source_handle=source_handle,
        target=NodeId(target),
        target_handle=target_handle,
        mode=reader.choice(item, "mode", place, EdgeMode),
        path=_read_path(item.get("path"), f"{place}.path", reader),
        extra=reader.others(item, _EDGE_KEYS),
    )


def _read_path(value: Any, place: str, reader: Reader) -> tuple[PathStep, ...]:
    if value is None:
        return ()
    if not is_array(value):
        reader.other(place, "a list of names and numbers", value)
        return ()
    for number, step in enumerate(value):
        if isinstance(step, bool) or not isinstance(step, str | int):
            reader.other(f"{place}[{number}]", "a name or a number", step)
    return tuple(value)
