"""Tracing: running the body of a workflow once, with stand-ins for values, to learn its graph.

Inside a workflow, calling a node type records a node and returns a `Ref`: a value that will exist only in a run.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import msgspec

from perdure.errors import GraphError, MisusedRef, WorkflowRaised
from perdure.graph.constants import MAX_DEPTH, is_object, schema_of, to_constant
from perdure.graph.handles import Handle, Outputs, Stream
from perdure.graph.itemfailure import ERRORS, ItemFailure
from perdure.graph.model import (
    CONDITION,
    DEFAULT_OUTPUT,
    INPUT,
    ORDER,
    OUTPUT,
    EdgeMode,
    Graph,
    Input,
    JoinMode,
    Leftovers,
    Node,
)
from perdure.graph.refs import NamedHandles, Ref, RefValue, choices, find_ref, owner_of, place_of_call, placed, value_of
from perdure.graph.templates import literal
from perdure.graph.wiring import Alternatives, Origin, Text, Wiring, sort_edges
from perdure.ids import NodeId

if TYPE_CHECKING:
    from perdure.graph.declare import NodeType

T = TypeVar("T")


class Scope:
    """What holds for every node that is called inside a `with`."""

    def __init__(
        self,
        trace: Trace,
        *,
        edges: Iterable[tuple[Origin, str, EdgeMode | None]] = (),
        stage: str | None = None,
    ) -> None:
        self.edges = tuple(edges)
        self.stage = stage
        self._trace = trace

    def __enter__(self) -> None:
        self._trace.scopes.append(self)

    def __exit__(self, *_: object) -> None:
        self._trace.scopes.remove(self)


class Trace:
    """The graph of one workflow while its body runs."""

    def __init__(self, workflow: str) -> None:
        self.workflow = workflow
        self.types: dict[str, NodeType[..., Any]] = {}
        self.places: dict[str, str] = {}
        """Where each node is called."""
        self.scopes: list[Scope] = []
        self._nodes: list[Node] = []
        self._ids: set[str] = set()
        self._last_number: dict[str, int] = {}
        self._wiring = Wiring()

    def input(self, name: str) -> Ref:
        """Return what stands for an input of the workflow."""
        return Ref(self, Origin(INPUT, name))

    def stream_input(self, handle: Handle, node_type: NodeType[..., Any]) -> Ref:
        """Record the node that stands for an input that is a stream, and return what stands for its items."""
        self._know(node_type)
        node_id = NodeId(handle.name)
        self._ids.add(node_id)
        schema = schema_of(handle.annotation)
        self._nodes.append(Node(id=node_id, type=node_type.name, data={"schema": literal(schema)} if schema else {}))
        return Ref(self, Origin(node_id))

    def call(
        self,
        node_type: NodeType[..., Any],
        arguments: Mapping[str, Any],
        *,
        mapped: Collection[str] = (),
        join: JoinMode | None = None,
        leftovers: Leftovers = "fail",
    ) -> Ref:
        """Record a node, fed by `arguments`, and return what stands for its result."""
        self._know(node_type)
        node_id = self._take_id(node_type)
        self.places[node_id] = place_of_call()
        handles = {handle.name: handle for handle in node_type.inputs}
        data: dict[str, Any] = {}
        for name, value in arguments.items():
            handle = handles.get(name) or Handle(name=name)
            fed = self._feed(node_id, handle, value, is_mapped=name in mapped)
            if fed is not msgspec.UNSET:
                data[name] = fed
        stages = [scope.stage for scope in self.scopes if scope.stage is not None]
        for scope in self.scopes:
            for origin, target_handle, mode in scope.edges:
                self._wiring.connect(origin, node_id, target_handle, mode)
        stage = node_type.stage if node_type.stage is not None else next(reversed(stages), None)
        self._nodes.append(
            Node(id=node_id, type=node_type.name, data=data, stage=stage, join=join, leftovers=leftovers)
        )
        return Ref(self, _result(node_id, node_type))

    def finish(self, returned: Any, inputs: tuple[Input, ...]) -> Graph:
        """Return the graph of a workflow whose body has returned `returned`."""
        outputs: dict[str, Any] = {}
        for name, value in _named_outputs(returned).items():
            fed = self._feed(OUTPUT, Handle(name=name), value, is_mapped=False)
            if fed is not msgspec.UNSET:
                outputs[name] = fed
        nodes = tuple(self._nodes)
        edges = sort_edges(nodes, self._wiring.edges)
        return Graph(name=self.workflow, nodes=nodes, edges=edges, inputs=inputs, outputs=outputs)

    def origin_of(self, value: object, what: str) -> Origin:
        """Return where a value comes from that must be one value of this run."""
        match self.written(value, what) if isinstance(value, Ref) else None:
            case Origin(mode=None) as origin:
                return origin
            case _:
                raise MisusedRef(f"{what} needs a value from a node or an input, not {value!r} ({place_of_call()}).")

    def written(self, ref: Ref, what: str) -> Origin | Alternatives | Text:
        """Return what a Ref stands for, as it is written into the graph."""
        if owner_of(ref) is not self:
            raise MisusedRef(
                f"{what} got {ref!r}, which belongs to another tracing, of workflow {owner_of(ref).workflow!r} "
                f"({place_of_call()}). Values pass between workflows only as inputs and results of runs."
            )
        value = value_of(ref)
        if value is None or isinstance(value, NamedHandles):
            names = None if value is None else value.names
            raise MisusedRef(f"{what} got {ref!r} ({place_of_call()}). Choose one of them: {choices(names)}.")
        return value

    def _know(self, node_type: NodeType[..., Any]) -> None:
        known = self.types.setdefault(node_type.name, node_type.declared)
        if known.fn is not node_type.fn:
            raise GraphError(
                f"Two node types in workflow {self.workflow!r} are both called {node_type.name!r} ({place_of_call()}). "
                "Give one of them another name: @node(name=…)."
            )

    def _take_id(self, node_type: NodeType[..., Any]) -> NodeId:
        base = node_type.node_id
        if base is not None and base in self._ids:
            raise GraphError(
                f"Two nodes of workflow {self.workflow!r} are both called {base!r} ({place_of_call()}). "
                "Choose another id, or leave the choice to perdure."
            )
        chosen = base or self._numbered(node_type.label)
        self._ids.add(chosen)
        return NodeId(chosen)

    def _numbered(self, label: str) -> str:
        number = self._last_number.get(label, 0) + 1
        chosen = label if number == 1 else f"{label}_{number}"
        while chosen in self._ids:
            number += 1
            chosen = f"{label}_{number}"
        self._last_number[label] = number
        return chosen

    def _feed(self, target: NodeId, handle: Handle, value: Any, *, is_mapped: bool) -> Any:
        what = f"The output {handle.name!r}" if target == OUTPUT else f"{handle.name!r} of node {target!r}"
        if is_mapped:
            return self._wiring.feed(target, handle.name, self._mappable(value, handle, what), "map")
        written = self._write(value, handle.annotation, what)
        streamed = handle.streaming and isinstance(written, Origin) and written.mode is None
        return self._wiring.feed(target, handle.name, written, "stream" if streamed else None)

    def _mappable(self, value: Any, handle: Handle, what: str) -> Any:
        if isinstance(value, Ref):
            return self.origin_of(value, f"Mapping over {what}")
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            kind = type(cast("object", value)).__name__
            raise MisusedRef(f"{what} maps over a stream or a list, and this is of type {kind} ({place_of_call()}).")
        return [self._write(item, handle.annotation, what) for item in cast("Any", value)]

    def _write(self, value: Any, annotation: Any, what: str, depth: int = 0) -> Any:
        """Return the value as JSON, with origins in the place of Refs."""
        if isinstance(value, Ref):
            written = self.written(value, what)
            if depth and isinstance(written, Alternatives):
                raise MisusedRef(f"{what}: first(…) cannot be a part of a value, only a whole one ({place_of_call()}).")
            return written
        if find_ref([value]) is None:
            return _constant(value, annotation, what)
        if depth >= MAX_DEPTH:
            raise GraphError(f"{what} is nested deeper than {MAX_DEPTH} levels ({place_of_call()}).")
        if is_object(value):
            return {
                _constant(key, str, what): self._write(member, Any, what, depth + 1) for key, member in value.items()
            }
        return [self._write(member, Any, what, depth + 1) for member in value]


_current: ContextVar[Trace | None] = ContextVar("perdure_trace", default=None)


def current_trace() -> Trace | None:
    """Return the trace of the workflow whose body is running, if one is."""
    return _current.get()


class Traced(NamedTuple):
    """What tracing a workflow has found."""

    graph: Graph
    types: Mapping[str, NodeType[..., Any]]
    places: Mapping[str, str]
    """Where in the user's code each node is called, and under the name of the workflow's end, where it is written."""


_stream_inputs: list[NodeType[..., Any]] = []


def know_stream_input(node_type: NodeType[..., Any]) -> None:
    """Take note of the node type that stands for inputs that are streams."""
    _stream_inputs.append(node_type)


def trace_workflow(
    workflow: str, body: Callable[..., Any], inputs: tuple[Input, ...], streams: Sequence[Handle] = ()
) -> Traced:
    """Run the body of a workflow once, and return its graph and the node types in it."""
    trace = Trace(workflow)
    written = f"{body.__code__.co_filename}:{body.__code__.co_firstlineno}"
    token = _current.set(trace)
    try:
        given = {given.name: trace.input(given.name) for given in inputs}
        given |= {handle.name: trace.stream_input(handle, _stream_inputs[-1]) for handle in streams}
        returned = body(**given)
        with placed(written):
            return Traced(trace.finish(returned, inputs), trace.types, {**trace.places, OUTPUT: written})
    except GraphError:
        raise
    except Exception as error:  # the function is the user's own, and may raise anything
        raise WorkflowRaised(workflow, error, *_place_in(body, error)) from error
    finally:
        _current.reset(token)


def _place_in(body: Callable[..., Any], error: Exception) -> tuple[str, str]:
    """Return the place and the text of the line of the body that raised, or led to what did."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == body.__code__.co_filename]
    last = (own or frames)[-1]
    return f"{last.filename}:{last.lineno}", last.line or ""


def collect(items: Stream[T]) -> list[T]:
    """Give a stream to a parameter as one list, when it has ended."""
    trace = _tracing("collect")
    origin = trace.origin_of(items, "collect")
    return cast("list[T]", Ref(trace, msgspec.structs.replace(origin, mode="collect")))


def failures(items: Stream[Any]) -> Stream[ItemFailure]:
    """Give the items for which a mapped node has failed for good, as a stream. Its type says `on_item_error="collect"`."""
    trace = _tracing("failures")
    value = value_of(items)
    node_id = value.node if isinstance(value, NamedHandles) else trace.origin_of(items, "failures").node
    return cast("Stream[ItemFailure]", Ref(trace, Origin(node_id, ERRORS)))


def first(*alternatives: T) -> T:
    """Give the first of several values that is not skipped."""
    trace = _tracing("first")
    origins: list[Origin] = []
    for alternative in alternatives:
        value = value_of(alternative)
        if isinstance(value, Alternatives):
            origins.extend(value.origins)
        else:
            origins.append(trace.origin_of(alternative, "first"))
    if not origins:
        raise MisusedRef(f"first needs at least one value ({place_of_call()}).")
    return cast("T", Ref(trace, Alternatives(tuple(origins))))


def text(*parts: object) -> str:
    """Join texts and values of the run into one text."""
    trace = _tracing("text")
    joined: list[str | Origin] = []
    for part in parts:
        value = trace.written(part, "text") if isinstance(part, Ref) else None
        if isinstance(value, Text):
            joined.extend(value.parts)
        elif isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part if isinstance(part, str) else trace.origin_of(part, "text"))
    words = "".join(part for part in joined if isinstance(part, str))
    has_values = any(isinstance(part, Origin) for part in joined)
    return cast("str", Ref(trace, Text(tuple(joined)))) if has_values else words


def when(condition: object) -> Scope:
    """Let the nodes that are called inside `with when(value):` run only if the value is true; else they are skipped."""
    return _conditional(condition, "when")


def unless(condition: object) -> Scope:
    """Let the nodes that are called inside `with unless(value):` run only if the value is false."""
    return _conditional(condition, "unless")


def after(*values: object) -> Scope:
    """Let the nodes that are called inside `with after(value):` wait for the node it comes from, without taking it."""
    trace = _tracing("after")
    origins = [msgspec.structs.replace(_whole(trace, value), path=()) for value in values]
    return Scope(trace, edges=[(origin, ORDER, None) for origin in origins])


def stage(name: str) -> Scope:
    """Label the nodes that are called inside `with stage("name"):`. The innermost label counts."""
    if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise GraphError(f"A stage is named by a text, not by {name!r} ({place_of_call()}).")
    return Scope(_tracing("stage"), stage=name)


def _tracing(name: str) -> Trace:
    trace = _current.get()
    if trace is None:
        raise MisusedRef(f"{name}(…) only means something inside a @workflow function ({place_of_call()}).")
    return trace


def _conditional(condition: object, mode: EdgeMode) -> Scope:
    trace = _tracing(mode)
    if not isinstance(condition, Ref):
        raise MisusedRef(
            f"{mode}(…) needs a value from a node or an input ({place_of_call()}); {condition!r} is known while the "
            "workflow is traced: use a plain `if`."
        )
    return Scope(trace, edges=[(trace.origin_of(condition, mode), CONDITION, mode)])


def _whole(trace: Trace, value: object) -> Origin:
    """Return where a value comes from; of a node that names its handles, the first one stands for the node."""
    named = value_of(value)
    if isinstance(named, NamedHandles):
        return Origin(named.node, next(iter(named.names or ()), DEFAULT_OUTPUT))
    origin = trace.origin_of(value, "after")
    if origin.node == INPUT:
        raise MisusedRef(f"after(…) needs the result of a node; inputs are there from the start ({place_of_call()}).")
    return origin


def _result(node_id: NodeId, node_type: NodeType[..., Any]) -> RefValue:
    names = tuple(handle.name for handle in node_type.outputs)
    if node_type.open_outputs:
        return NamedHandles(node_id, None)
    return Origin(node_id) if names == (DEFAULT_OUTPUT,) else NamedHandles(node_id, names)


def _named_outputs(returned: Any) -> dict[str, Any]:
    """Return what a workflow returns under the names of its outputs."""
    if returned is None:
        return {}
    if isinstance(returned, Outputs):
        return returned.handles()
    if isinstance(returned, Ref) and isinstance(value := value_of(returned), NamedHandles) and value.names is not None:
        return {name: returned[name] for name in value.names}
    # A mapping with the one key `output` would be taken for its value: it is one value that happens to be a mapping.
    if is_object(returned) and returned and returned.keys() != {DEFAULT_OUTPUT}:
        return {_output_name(name): value for name, value in returned.items()}
    return {DEFAULT_OUTPUT: returned}


def _output_name(name: Any) -> str:
    if isinstance(name, str) and name and not name.startswith("$"):
        return name
    raise GraphError(f"{name!r} cannot name an output of a workflow. Names are texts that do not start with '$'.")


def _constant(value: Any, annotation: Any, what: str) -> Any:
    try:
        return to_constant(value, annotation)
    except ValueError as error:
        name = getattr(value, "__name__", "")
        if callable(value) and name.isidentifier():
            raise GraphError(
                f"{what} got {name} itself, not what a call of it gives ({place_of_call()}). Call it: {name}(…)."
            ) from None
        raise GraphError(
            f"{what} got a constant that cannot be written into a graph: {error} ({place_of_call()}). "
            "Make it an input of the workflow, or make it inside a node."
        ) from None
