"""The short form: nodes that say what they depend on, and refer to outputs in their configuration.

    name: digest
    inputs: [url]
    nodes:
      - id: fetch
        handler: pages.fetch
        config: {url: "{{ inputs.url }}"}
      - id: title
        handler: pages.headline
        dependencies: [fetch]
        config: {text: "About {{ fetch.title }}"}
    outputs: {output: "{{ title.output }}"}

- `{{ node.field }}` is an output of the node if it has one of that name, else a part of its only output; further fields
  are parts of that. Without node types at hand, `output` is the output and everything else a part. `{{ node }}` is the
  only output itself. Fields that are no plain words are written `["any text"]`, items of lists `.0` or `[0]`.
- A reference that is the whole text keeps the type of its value; with text around it, the value becomes part of the
  text. `{{ '…' }}` stands for the characters between the quotes, such as `{{ '{{' }}`.
- `dependencies` that nothing refers to are only waited for. Where they are listed, references are only to them; where
  they are left out, they follow from the references.
- Inputs that are left out follow from the references to `inputs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import NotExpressible
from perdure.graph.calls import did_you_mean
from perdure.graph.constants import MAX_DEPTH, is_array, is_object
from perdure.graph.model import DEFAULT_OUTPUT, INPUT, ORDER, OUTPUT, Edge, EdgeMode, Graph, Input, Node, PathStep
from perdure.graph.reading import Reader, nearest_key
from perdure.graph.templates import REF, TEXT, VALUE, is_mapped, marker_of
from perdure.graph.wiring import Origin, Text, Wiring, sort_edges
from perdure.ids import NodeId

if TYPE_CHECKING:
    from perdure.graph.declare import NodeType

Types = Mapping[str, "NodeType[..., Any]"]

_GRAPH_KEYS = ("name", "inputs", "nodes", "outputs")
_NODE_KEYS = ("id", "handler", "dependencies", "config", "stage")
_LIKENESS_OF_HANDLERS = 0.85
_MOST_LOOKED_AT = 100
"""In how many nodes a misspelt `handler` is looked for."""
_INPUTS = "inputs"
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_WORD = re.compile(r"[^\s.\[\]{}'\"]+")
_STEP = re.compile(r"\.([^\s.\[\]{}'\"]+)|\[(-?[0-9]+)\]|\[(\"(?:[^\"\\]|\\.)*\")\]")
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def is_short(document: dict[str, Any]) -> bool:
    """Whether a document is in the short form: some node has a `handler`, or in the place of a type what is almost one."""
    nodes = document.get("nodes")
    if not is_array(nodes) or "edges" in document:
        return False
    objects = [node for node in nodes if is_object(node)]
    return any("handler" in node for node in objects) or any(
        "type" not in node and nearest_key("handler", node, likeness=_LIKENESS_OF_HANDLERS)
        for node in objects[:_MOST_LOOKED_AT]
    )


def read_short(document: dict[str, Any], types: Types | None, reader: Reader) -> Graph:
    """Return the graph that a document in the short form describes. What is wrong is noted by the reader."""
    return _ShortReader(document, types or {}, reader).graph()


def write_short(graph: Graph, types: Types | None) -> dict[str, Any]:
    """Return a graph in the short form. Raises NotExpressible, with all the reasons, if it has no words for it."""
    if problems := list(_inexpressible(graph)):
        raise NotExpressible(problems)
    edges = {edge.id: edge for edge in graph.edges}
    incoming: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        incoming.setdefault(edge.target, []).append(edge)
    document: dict[str, Any] = {"name": graph.name}
    if graph.inputs:
        document["inputs"] = [_written_input(given) for given in graph.inputs]
    document["nodes"] = [_written_node(node, incoming.get(node.id, []), edges) for node in graph.nodes]
    outputs = _written_values(graph.outputs, incoming.get(OUTPUT, []), edges)
    if outputs:
        document["outputs"] = outputs
    document = {**document, **graph.extra, **document}
    reader = Reader()
    again = read_short(document, types, reader)
    if reader.faults or again != graph:
        reasons = [str(fault) for fault in reader.faults]
        raise NotExpressible([*reasons, "it would not read back the same: it chooses ids of edges, or named outputs."])
    return document


class _ShortReader:
    """Reads one document."""

    def __init__(self, document: dict[str, Any], types: Types, reader: Reader) -> None:
        self._document = document
        self._types = types
        self._reader = reader
        self._wiring = Wiring()
        self._items = list(reader.objects(document, "nodes", required=True))
        self._handlers = {item["id"]: item.get("handler") for _, item in self._items if isinstance(item.get("id"), str)}
        self._mentioned: dict[str, None] = {}
        self._referred: list[tuple[str, str]] = []
        """Where nodes are referred to, and which."""

    def graph(self) -> Graph:
        nodes = tuple(self._node(item, place) for place, item in self._items)
        outputs = self._values(OUTPUT, self._reader.mapping(self._document, "outputs", ""), "outputs", None)
        declared = self._reader.inputs(self._document)
        if "inputs" not in self._document:
            declared = tuple(Input(name=name) for name in self._mentioned)
        if self._reader.faults:
            self._note_what_validation_would_find()
        return Graph(
            name=self._reader.text(self._document, "name", ""),
            nodes=nodes,
            edges=sort_edges(nodes, self._wiring.edges),
            inputs=declared,
            outputs=outputs,
            extra=self._reader.others(self._document, _GRAPH_KEYS),
        )

    def _note_what_validation_would_find(self) -> None:
        """A document with faults is not validated. What its ids get wrong is told with them, not after they are mended."""
        seen: set[str] = set()
        for place, item in self._items:
            node_id = item.get("id")
            if isinstance(node_id, str) and node_id in seen:
                self._reader.fault(f"{place}.id", f"another node is called {node_id!r}: rename one of them.")
            seen.add(str(node_id))
        for place, node_id in self._referred:
            if node_id not in self._handlers:
                guess = did_you_mean(node_id, [*self._handlers, _INPUTS])
                self._reader.fault(place, f"there is no node {node_id!r}{guess}.")

    def _node(self, item: dict[str, Any], place: str) -> Node:
        node_id = NodeId(self._reader.text(item, "id", place))
        if node_id == _INPUTS:
            self._reader.fault(f"{place}.id", f"{_INPUTS!r} means the inputs of the workflow: rename the node.")
        if "type" in item:
            self._reader.fault(f"{place}.type", "a node has a 'type' or, in the short form, a 'handler': keep one.")
        handler = self._reader.text(item, "handler", place)
        dependencies = self._dependencies(item, place)
        config = self._reader.mapping(item, "config", place)
        before = len(self._wiring.edges)
        data = self._values(node_id, config, f"{place}.config", handler)
        sources = dict.fromkeys(edge.source for edge in self._wiring.edges[before:])
        if dependencies is not None:
            for source in sources:
                if source != INPUT and source not in dependencies:
                    self._reader.fault(f"{place}.config", f"{source!r} is not among the dependencies: add it.")
            for dependency in dependencies:
                if dependency not in sources:
                    self._wiring.connect(self._waited_for(dependency), node_id, ORDER)
        return Node(
            id=node_id,
            type=handler,
            data=data,
            stage=self._reader.optional_text(item, "stage", place),
            extra=self._reader.others(item, (*_NODE_KEYS, "type")),
        )

    def _dependencies(self, item: dict[str, Any], place: str) -> list[str] | None:
        value = item.get("dependencies")
        if value is None:
            return None
        if not is_array(value):
            self._reader.other(f"{place}.dependencies", "a list of ids of nodes", value)
            return None
        wrong = [(number, member) for number, member in enumerate(value) if not isinstance(member, str) or not member]
        for number, member in wrong:
            self._reader.other(f"{place}.dependencies[{number}]", "the id of a node", member)
        if wrong:
            return None
        return list(dict.fromkeys(value))

    def _waited_for(self, dependency: str) -> Origin:
        node_type = self._type_of(dependency)
        names = [] if node_type is None else [handle.name for handle in node_type.outputs]
        return Origin(NodeId(dependency), DEFAULT_OUTPUT if DEFAULT_OUTPUT in names or not names else names[0])

    def _values(self, target: NodeId, config: dict[str, Any], place: str, handler: str | None) -> dict[str, Any]:
        node_type = self._types.get(handler) if handler is not None else None
        streaming = {handle.name for handle in node_type.inputs if handle.streaming} if node_type else set[str]()
        data: dict[str, Any] = {}
        for name, value in config.items():
            written = self._resolved(value, f"{place}.{name}")
            mode: EdgeMode | None = "stream" if name in streaming and isinstance(written, Origin) else None
            fed = self._wiring.feed(target, name, written, mode)
            if fed is not msgspec.UNSET:
                data[name] = fed
        return data

    def _resolved(self, value: Any, place: str) -> Any:
        """Return a value of the configuration with origins in the place of references."""
        if isinstance(value, str):
            return self._resolved_text(value, place)
        if is_object(value):
            return {key: self._resolved(member, f"{place}.{key}") for key, member in value.items()}
        if is_array(value):
            return [self._resolved(member, f"{place}[{number}]") for number, member in enumerate(value)]
        return value

    def _resolved_text(self, text: str, place: str) -> Any:
        if "{{" not in text:
            return text
        parts: list[str | Origin] = []
        while text:
            before, opening, rest = text.partition("{{")
            inside, closing, text = rest.partition("}}")
            if opening and not closing:
                self._reader.fault(place, "'{{' is not closed. For the characters themselves, write {{ '{{' }}.")
            if before:
                parts.append(before)
            if closing:
                parts.append(self._inside_braces(inside.strip(), place))
        match parts:
            case [Origin() as origin]:
                return origin
            case _ if any(isinstance(part, Origin) for part in parts):
                return Text(tuple(_joined(parts)))
            case _:
                return "".join(part for part in parts if isinstance(part, str))

    def _inside_braces(self, expression: str, place: str) -> str | Origin:
        quoted = _QUOTED.fullmatch(expression)
        return (quoted[1] or quoted[2] or "") if quoted else self._origin(expression, place)

    def _origin(self, expression: str, place: str) -> Origin:
        start = _WORD.match(expression)
        steps = _steps(expression[start.end() :]) if start else None
        if start is None or steps is None or len(steps) > MAX_DEPTH:
            self._reader.fault(place, f"{{{{ {expression} }}}} is not a reference such as {{{{ node.field }}}}.")
            return Origin(NodeId("?"))
        node_id = start[0]
        if node_id == _INPUTS:
            return self._input_origin(steps, place)
        # An id may have points in it: the longest that is one counts.
        for count in range(len(steps), 0, -1):
            longer = ".".join([node_id, *map(str, steps[:count])])
            if longer in self._handlers:
                node_id, steps = longer, steps[count:]
                break
        self._referred.append((place, node_id))
        handle, path = self._handle(node_id, steps)
        return Origin(NodeId(node_id), handle, tuple(path))

    def _input_origin(self, steps: list[PathStep], place: str) -> Origin:
        if not steps:
            self._reader.fault(place, "{{ inputs }} needs the name of an input: {{ inputs.name }}.")
            return Origin(INPUT, "?")
        name = str(steps[0])
        self._mentioned[name] = None
        return Origin(INPUT, name, tuple(steps[1:]))

    def _handle(self, node_id: str, steps: list[PathStep]) -> tuple[str, list[PathStep]]:
        if not steps:
            return DEFAULT_OUTPUT, []
        node_type = self._type_of(node_id)
        names = {DEFAULT_OUTPUT} if node_type is None else {handle.name for handle in node_type.outputs}
        first = steps[0]
        if isinstance(first, str) and (first in names or DEFAULT_OUTPUT not in names):
            return first, steps[1:]
        return DEFAULT_OUTPUT, steps

    def _type_of(self, node_id: str) -> NodeType[..., Any] | None:
        handler = self._handlers.get(node_id)
        return self._types.get(handler) if isinstance(handler, str) else None


def _steps(text: str) -> list[PathStep] | None:
    """Return the fields of a reference; None if they are not written as such."""
    steps: list[PathStep] = []
    end = 0
    while end < len(text):
        match = _STEP.match(text, end)
        if match is None:
            return None
        word, number, quoted = match.groups()
        if quoted is not None:
            try:
                steps.append(json.loads(quoted))
            except json.JSONDecodeError:
                return None
        else:
            step = word if word is not None else number
            steps.append(int(step) if _NUMBER.fullmatch(step) else step)
        end = match.end()
    return steps


def _joined(parts: list[str | Origin]) -> Iterator[str | Origin]:
    """Yield the parts with texts that stand side by side as one, and without empty ones."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text


def _inexpressible(graph: Graph) -> Iterator[str]:
    for edge in graph.edges:
        if edge.mode not in (None, "stream"):
            yield f"edge {edge.id!r} has the mode {edge.mode!r}."
        if edge.extra:
            yield f"edge {edge.id!r} has keys of its own."
    for node in graph.nodes:
        if node.join is not None or node.leftovers != "fail":
            yield f"node {node.id!r} joins streams."
        yield from (f"node {node.id!r} maps over {name!r}." for name, value in node.data.items() if is_mapped(value))
        if node.id == _INPUTS or not all(_WORD.fullmatch(word) for word in node.id.split(".")):
            yield f"the id {node.id!r} cannot be referred to."


def _written_input(given: Input) -> Any:
    if not given.schema and given.default is msgspec.UNSET:
        return given.name
    document: dict[str, Any] = {"name": given.name, "schema": given.schema}
    return document if given.default is msgspec.UNSET else {**document, "default": given.default}


def _written_node(node: Node, incoming: list[Edge], edges: Mapping[str, Edge]) -> dict[str, Any]:
    document: dict[str, Any] = {"id": node.id, "handler": node.type}
    if node.stage is not None:
        document["stage"] = node.stage
    referred = [edge.source for edge in incoming if edge.source != INPUT and edge.target_handle != ORDER]
    waited_for = [edge.source for edge in incoming if edge.target_handle == ORDER]
    document["dependencies"] = list(dict.fromkeys([*referred, *waited_for]))
    document["config"] = _written_values(node.data, incoming, edges)
    return {**document, **node.extra, **document}


def _written_values(data: Mapping[str, Any], incoming: list[Edge], edges: Mapping[str, Edge]) -> dict[str, Any]:
    values = {name: _written(value, edges) for name, value in data.items()}
    fed: dict[str, list[str]] = {}
    for edge in incoming:
        if edge.target_handle != ORDER and edge.target_handle not in data:
            fed.setdefault(edge.target_handle, []).append(_reference(edge))
    values.update({name: texts[0] if len(texts) == 1 else texts for name, texts in fed.items()})
    return values


def _written(value: Any, edges: Mapping[str, Edge]) -> Any:
    match marker_of(value):
        case "$ref":
            return _reference(edges[value[REF]]) if value[REF] in edges else value
        case "$text":
            parts = [_escaped(part) if isinstance(part, str) else _written(part, edges) for part in value[TEXT]]
            # A reference alone would keep its type; with an empty text beside it, it becomes one.
            return "".join(parts) + ("{{ '' }}" if len(parts) == 1 else "")
        case "$value":
            return _escaped_all(value[VALUE])
        case _:
            pass
    if is_object(value):
        return {key: _written(member, edges) for key, member in value.items()}
    if is_array(value):
        return [_written(member, edges) for member in value]
    return _escaped(value) if isinstance(value, str) else value


def _escaped_all(value: Any) -> Any:
    if is_object(value):
        return {key: _escaped_all(member) for key, member in value.items()}
    if is_array(value):
        return [_escaped_all(member) for member in value]
    return _escaped(value) if isinstance(value, str) else value


def _escaped(text: str) -> str:
    return text.replace("{{", "{{ '{{' }}")


def _reference(edge: Edge) -> str:
    source = _INPUTS if edge.source == INPUT else edge.source
    return "{{ " + source + "".join(map(_written_step, (edge.source_handle, *edge.path))) + " }}"


def _written_step(step: PathStep) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    is_word = _WORD.fullmatch(step) is not None and _NUMBER.fullmatch(step) is None
    # Braces inside would end the reference.
    return f".{step}" if is_word else "[" + json.dumps(step).replace("}", r"\u007d") + "]"
