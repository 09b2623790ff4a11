"""What reaches each handle of a graph, and whether the handle can take it."""

from __future__ import annotations

import types
from collections.abc import Iterator, Set
from typing import TYPE_CHECKING, Any

from perdure.errors import Fault
from perdure.graph.annotations import describe, is_assignable, item_of, part_at
from perdure.graph.calls import did_you_mean
from perdure.graph.constants import check_constant, is_schema_compatible, schema_of
from perdure.graph.handles import Handle
from perdure.graph.index import EdgesByHandle, Index, Kind
from perdure.graph.model import CONDITION, INPUT, ORDER, OUTPUT, Edge, Node
from perdure.graph.streams import UNKNOWN, Streams
from perdure.graph.templates import MAP, VALUE, fill, is_mapped, marker_of, problems_of, references

if TYPE_CHECKING:
    from perdure.graph.declare import Check

_CONDITIONS = ("when", "unless")
_SCALARS = (str, int, float, bool, type(None))
_CHOICES = (
    "Choose how: f.map(xs) for a call per item, f(collect(xs)) for one call with a list, or annotate the parameter "
    "Stream[T] to read it while it arrives."
)


class Feeding:
    """Checks, node by node, what feeds their handles. What was found for one pair of handles is remembered."""

    def __init__(self, index: Index, streams: Streams) -> None:
        self._index = index
        self._streams = streams
        self._verdicts: dict[tuple[Any, ...], tuple[str, str, str] | None] = {}

    def faults(self) -> Iterator[Fault]:
        """Yield every fault of every handle."""
        index = self._index
        for position, node in enumerate(index.nodes):
            kind, incoming = index.kinds[position], index.incoming[position]
            found = list(self._target_faults(node.id, kind, incoming, node.data))
            yield from found
            if kind is not None and kind.check is not None and not found:
                yield from _whole_faults(node, kind.check, incoming.keys() - {CONDITION, ORDER})
        yield from self._target_faults(OUTPUT, None, index.to_output, index.graph.outputs)

    def _target_faults(
        self, target: str, kind: Kind | None, incoming: EdgesByHandle, data: dict[str, Any]
    ) -> Iterator[Fault]:
        if kind is not None:
            for name in kind.required:
                if name not in incoming and name not in data:
                    message = f"Nothing feeds {name!r} of node {target!r}."
                    yield Fault(target, "missing_input", message, "Connect it, give it a constant, or a default.")
            if not kind.open_inputs:
                for name in (*incoming, *data):
                    if name not in kind.inputs and name not in (CONDITION, ORDER):
                        yield _unknown_input(target, name, kind)
        for name, edges in incoming.items():
            handle = kind.inputs.get(name) if kind is not None else None
            yield from self._edges_faults(target, name, handle, edges)
            if name in data:
                yield from _template_faults(target, name, data[name], edges)
            elif len(edges) > 1 and name not in (CONDITION, ORDER):
                yield from self._several_faults(target, name, handle, edges)
            elif handle is not None:
                yield from self._type_faults(target, handle, edges[0], handle.annotation)
        for name, value in data.items():
            if name not in incoming:
                handle = kind.inputs.get(name) if kind is not None else None
                yield from _constant_faults(target, name, handle, value)

    def _edges_faults(self, target: str, name: str, handle: Handle | None, edges: list[Edge]) -> Iterator[Fault]:
        """Yield what is wrong with each edge by itself: where it comes from, its mode, its part of the value."""
        for edge in edges:
            if (problem := _misplaced(edge, name, handle)) is not None:
                yield Fault(target, "misplaced_mode", f"Edge {edge.id!r} {problem}.", "Change its mode or its target.")
            source = self._index.position.get(edge.source)
            kind = None if source is None else self._index.kinds[source]
            if kind is not None and edge.source_handle not in kind.outputs and not kind.open_outputs:
                guess = did_you_mean(edge.source_handle, kind.outputs)
                message = f"Node {edge.source!r} has no output {edge.source_handle!r}{guess}."
                yield Fault(target, "unknown_handle", message, f"It has {_names(kind.outputs)}.")
            yield from self._stream_faults(target, name, handle, edge)
            if edge.path:
                yield from self._part_faults(target, edge)

    def _stream_faults(self, target: str, name: str, handle: Handle | None, edge: Edge) -> Iterator[Fault]:
        lineage = self._streams.lineage_of(edge)
        if lineage is UNKNOWN or name == ORDER:
            return
        if lineage is None:
            if edge.mode in ("collect", "stream") or (edge.mode is None and handle is not None and handle.streaming):
                message = f"{name!r} of {target!r} wants a stream, but {_origin(edge)} is one value."
                yield Fault(target, "not_a_stream", message, "Give it the value itself, or feed it from a stream.")
        elif edge.mode in _CONDITIONS:
            if not self._is_mapped(target):
                message = f"A condition of {target!r} is one value, but {_origin(edge)} is a stream."
                remedy = "Map the node over items of the same stream, or collect it and decide on one value in a node."
                yield Fault(target, "stream_as_value", message, remedy)
            elif self._index.nodes[self._index.position[target]].join is not None:
                message = (
                    f"A condition of {target!r} decides item by item, but its items are brought together by a join."
                )
                yield Fault(target, "unaligned_join", message, "Join in a node of its own.")
        elif edge.mode in (None, "first"):
            message = f"{name!r} of {target!r} wants one value, but {_origin(edge)} is a stream."
            remedy = "Return it as a list: collect(xs)." if target == OUTPUT else _CHOICES
            if handle is not None and handle.streaming:
                remedy = "The parameter reads a stream: give the edge the mode 'stream'."
            yield Fault(target, "stream_as_value", message, remedy)
        elif edge.mode == "stream" and handle is not None and not handle.streaming:
            message = f"{name!r} of {target!r} does not read a stream while it arrives."
            yield Fault(target, "stream_as_value", message, _CHOICES)

    def _is_mapped(self, target: str) -> bool:
        position = self._index.position.get(target)
        if position is None:
            return False
        edges = (edge for edges in self._index.incoming[position].values() for edge in edges)
        is_fed = any(edge.mode == "map" for edge in edges)
        return is_fed or any(map(is_mapped, self._index.nodes[position].data.values()))

    def _part_faults(self, target: str, edge: Edge) -> Iterator[Fault]:
        source = self._index.source_handle(edge)
        if source is None:
            return
        try:
            part_at(source.annotation, edge.path)
        except LookupError as error:
            message = f"{target!r} wants a part of {_origin(edge)} that it cannot have: {error.args[0]}."
            yield Fault(target, "unknown_part", message, "Correct the name of the part.")

    def _several_faults(self, target: str, name: str, handle: Handle | None, edges: list[Edge]) -> Iterator[Fault]:
        modes = {edge.mode for edge in edges}
        if modes == {"first"}:
            item = None if handle is None else handle.annotation
        elif modes & {"first", "map", "stream"}:
            message = f"{name!r} of {target!r} is fed by {len(edges)} edges that exclude each other."
            yield Fault(target, "doubled_handle", message, "Keep one, or give all of them the mode 'first'.")
            return
        else:
            try:
                item = None if handle is None else item_of(handle.annotation)
            except TypeError:
                message = f"{name!r} of {target!r} takes one value, but {len(edges)} edges feed it."
                yield Fault(target, "doubled_handle", message, "Keep one of them, or let the parameter take a list.")
                return
        if handle is not None:
            for edge in edges:
                yield from self._type_faults(target, handle, edge, item)

    def _type_faults(self, target: str, handle: Handle, edge: Edge, wanted: Any) -> Iterator[Fault]:
        source = self._index.source_handle(edge)
        given = self._index.inputs.get(edge.source_handle) if edge.source == INPUT else None
        if source is None and given is None:
            return
        is_item = wanted is not handle.annotation
        is_stream = self._streams.lineage_of(edge) not in (None, UNKNOWN)
        if is_stream and not _takes_stream(edge, handle):
            return  # a fault of its own; of what type the items are would only distract from it
        key = (id(source or given), id(handle), edge.mode, edge.path, is_item, is_stream)
        if key not in self._verdicts:
            if source is not None:
                self._verdicts[key] = _type_verdict(edge, source, handle, wanted, is_stream=is_stream)
            else:
                self._verdicts[key] = None if given is None else _schema_verdict(edge, given.schema, wanted)
        verdict = self._verdicts[key]
        if verdict is not None:
            rule, problem, remedy = verdict
            yield Fault(target, rule, f"{handle.name!r} of {target!r} {problem} {_origin(edge)}.", remedy)


def _takes_stream(edge: Edge, handle: Handle) -> bool:
    return handle.streaming if edge.mode == "stream" else edge.mode in ("map", "collect")


def _type_verdict(
    edge: Edge, source: Handle, handle: Handle, wanted: Any, *, is_stream: bool
) -> tuple[str, str, str] | None:
    """Return rule, problem and remedy if what an edge brings can never be what the handle wants."""
    try:
        given = part_at(source.annotation, edge.path)
    except LookupError:
        return None
    if handle.streaming and edge.mode != "stream":
        return None
    if edge.mode == "collect":
        given = types.GenericAlias(list, (given,))
    elif edge.mode == "map" and not is_stream:
        try:
            given = item_of(given)
        except TypeError:
            problem = f"maps over items, but {describe(given)} has none: see"
            return "incompatible_types", problem, "Give it a stream or a list, or call it without `.map`."
    if is_assignable(given, wanted):
        return None
    problem = f"takes {describe(wanted)}, but gets {describe(given)} from"
    return "incompatible_types", problem, "Convert it in a node between them, or correct an annotation."


def _schema_verdict(edge: Edge, schema: dict[str, Any], wanted: Any) -> tuple[str, str, str] | None:
    """Return the same for an input of the workflow, of which only the schema is known."""
    if edge.path or edge.mode not in (None, "first", "map"):
        return None
    is_map = edge.mode == "map"
    given = schema.get("items", {}) if is_map else schema
    is_list = not is_map or is_schema_compatible(schema, {"type": "array"})
    if is_list and is_schema_compatible(given, schema_of(wanted)):
        return None
    problem = f"takes {'items that are ' if is_map else ''}{describe(wanted)}, which does not fit"
    return "incompatible_types", problem, "Correct the type of the input or of the parameter."


def _template_faults(target: str, name: str, value: Any, edges: list[Edge]) -> Iterator[Fault]:
    """Yield what is wrong where a handle has both edges and something in the data."""
    named = set(references(value))
    if not named:
        message = f"{name!r} of {target!r} has a constant and {len(edges)} edges."
        yield Fault(target, "doubled_handle", message, "Keep the constant or the edges.")
        return
    yield from _writing_faults(target, name, value)
    ids = {edge.id for edge in edges}
    for edge_id in sorted(named - ids):
        yield _dangling_template(target, name, edge_id)
    for edge in edges:
        if edge.id not in named:
            message = f"{name!r} of {target!r} has a template in which edge {edge.id!r} has no place."
            yield Fault(target, "doubled_handle", message, 'Give it one, {"$ref": …}, or remove the edge.')


def _constant_faults(target: str, name: str, handle: Handle | None, value: Any) -> Iterator[Fault]:
    """Yield what is wrong with a handle that has no edges, only something in the data."""
    if handle is not None and handle.streaming:
        message = f"{name!r} of {target!r} wants a stream, but gets a constant."
        yield Fault(target, "not_a_stream", message, "Feed it from a stream, or let the parameter take a list.")
        return
    annotation = Any if handle is None else handle.annotation
    if type(value) not in _SCALARS:
        for edge_id in sorted(set(references(value))):
            yield _dangling_template(target, name, edge_id)
        yield from _writing_faults(target, name, value)
        if is_mapped(value):
            annotation, value = types.GenericAlias(list, (annotation,)), value[MAP]
        if marker_of(value) == VALUE:
            value = value[VALUE]
        elif marker_of(value) is not None:
            return
    if type(value) is not annotation and (reason := check_constant(value, annotation)) is not None:
        message = f"The constant for {name!r} of {target!r} does not fit: {reason}."
        yield Fault(target, "invalid_property", message, f"It takes {describe(annotation)}.")


def _whole_faults(node: Node, check: Check, fed: Set[str]) -> Iterator[Fault]:
    """Yield what the node's type finds wrong with constants that fit their handles one by one."""
    constants = {name: fill(value, str, str) for name, value in node.data.items() if name not in fed}
    try:
        problems = list(check(constants, fed))
    except Exception as error:  # a trigger of a user's own may raise anything where it is asked
        problems = [f"It raised {type(error).__name__} when it was asked what is wrong: {error}."]
    for problem in problems:
        yield Fault(node.id, "invalid_property", f"Node {node.id!r} cannot run: {problem}", "Correct what it is given.")


def _writing_faults(target: str, name: str, value: Any) -> Iterator[Fault]:
    for problem in problems_of(value):
        message = f"The template for {name!r} of {target!r} is not one: {problem}."
        yield Fault(target, "invalid_template", message, 'Wrap what is meant literally: {"$value": …}.')


def _dangling_template(target: str, name: str, edge_id: str) -> Fault:
    message = f"The template for {name!r} of {target!r} names edge {edge_id!r}, which does not feed it."
    return Fault(target, "dangling_template", message, 'Add the edge, or wrap what is meant literally: {"$value": …}.')


def _misplaced(edge: Edge, name: str, handle: Handle | None) -> str | None:
    if (edge.mode in _CONDITIONS) != (name == CONDITION):
        return f"has the mode {edge.mode!r} and the target {name!r}: conditions, and only they, arrive at {CONDITION!r}"
    if name == ORDER and edge.mode is not None:
        return f"has the mode {edge.mode!r}, but carries no value"
    if edge.target == OUTPUT and edge.mode in ("map", "stream"):
        return f"has the mode {edge.mode!r}, but results are values"
    if handle is not None and handle.streaming and edge.mode in ("map", "collect"):
        return f"has the mode {edge.mode!r}, but {name!r} reads the stream itself"
    return None


def _unknown_input(target: str, name: str, kind: Kind) -> Fault:
    guess = did_you_mean(name, kind.inputs)
    return Fault(
        target, "unknown_handle", f"Node {target!r} has no input {name!r}{guess}.", f"It has {_names(kind.inputs)}."
    )


def _names(handles: Any) -> str:
    return ", ".join(handles) or "none"


def _origin(edge: Edge) -> str:
    part = "".join(f"[{step!r}]" for step in edge.path)
    if edge.source == INPUT:
        return f"the input {edge.source_handle!r}{part}"
    return f"{edge.source_handle!r} of {edge.source!r}{part}"
