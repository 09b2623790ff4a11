"""Declaring workflows: `@workflow` on a function whose calls of node types are its graph."""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast, get_args, get_origin, overload

import msgspec

from perdure.errors import Fault, GraphError, InvalidCall, InvalidDeclaration, InvalidGraph
from perdure.graph.annotations import describe, is_assignable, item_of, members_of, part_at
from perdure.graph.calls import bind_arguments
from perdure.graph.constants import check_constant, schema_of, to_constant
from perdure.graph.handles import Handle, Stream, hints_of, shape_of
from perdure.graph.index import outputs_of_type
from perdure.graph.model import DEFAULT_OUTPUT, INPUT, OUTPUT, Graph, Input
from perdure.graph.policy import duration, is_duration
from perdure.graph.refs import place_of_call
from perdure.graph.source import Source, source_of
from perdure.graph.starts import Starts
from perdure.graph.trace import current_trace, trace_workflow
from perdure.graph.validate import validate
from perdure.ids import is_text

if TYPE_CHECKING:
    from perdure.graph.declare import NodeType

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Durability = Literal["sync", "async", "exit"]
OnFailure = Literal["stop", "finish"]


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is made. What is None is for the engine to choose."""

    run_id: str | None = None
    store: str | None = None
    durability: Durability | None = None
    on_failure: OnFailure | None = None
    timeout: timedelta | None = None
    checkpoint_every: timedelta | None = None


class Workflow(Generic[P, R_co]):
    """A named graph, written as a function. The function runs once, when the graph is first asked for."""

    def __init__(self, fn: Callable[P, R_co], *, name: str, settings: RunSettings, inputs: tuple[Handle, ...]) -> None:
        self.fn = fn
        self.name = name
        self.settings = settings
        self.source: Source = source_of(fn)
        self.input_handles = inputs
        self.output_type: Any = hints_of(fn).get("return", Any)
        self.stream_handles = tuple(handle for handle in inputs if handle.streaming)
        self.inputs: tuple[Input, ...] = tuple(_input(handle) for handle in inputs if not handle.streaming)
        self._traced: tuple[Graph, Mapping[str, NodeType[..., Any]]] | None = None
        functools.update_wrapper(cast("Any", self), fn, updated=())

    @functools.cached_property
    def input_types(self) -> Mapping[str, Any]:
        """The annotation of each input. One that is a stream takes a list, if its items are known from the start."""
        return {
            handle.name: types.GenericAlias(list, (handle.annotation,)) if handle.streaming else handle.annotation
            for handle in self.input_handles
        }

    @property
    def graph(self) -> Graph:
        """The graph. Raises GraphError, with all that is wrong, if the function does not describe a valid one."""
        return self._trace()[0]

    @property
    def types(self) -> Mapping[str, NodeType[..., Any]]:
        """The node types in the graph, by name."""
        return self._trace()[1]

    @property
    def is_the_last(self) -> bool:
        """Whether no other workflow of this name was declared after it: who looks for the name finds this one."""
        return _workflows.get(self.name) is self

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the inputs that a call gives, by name, without defaults. Raises InvalidCall if they do not fit."""
        return bind_arguments(f"Workflow {self.name!r}", self.input_handles, args, kwargs)

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the workflow and return its result. The run is durable, in the store that `PERDURE_STORE` names."""
        return cast("R_co", _run(self, self.settings, self.bind(*args, **kwargs)))

    def start_each(
        self, items: Stream[Any] | Iterable[Any], /, *, into: str | None = None, **inputs: Any
    ) -> Stream[str]:
        """In another workflow: start a run of this one for each item, and give the ids of the runs as a stream.

        The item goes to the input `into`, which need not be said if only one input has no default and is not given; `inputs`
        are the same for every run. Each item starts one run, whatever happens; from then on the run is on its own.
        """
        return Starts(self).start_each(items, into=into, **inputs)

    def named(self, node_id: str) -> Starts:
        """Return this for a call that chooses the id of its node: `report.named("daily").start_each(ticks)`."""
        return Starts(self, node_id)

    def options(
        self,
        *,
        run_id: str | None = None,
        store: str | None = None,
        durability: Durability | None = None,
        on_failure: OnFailure | None = None,
        timeout: float | timedelta | None = None,
        checkpoint_every: float | timedelta | None = None,
    ) -> BoundWorkflow[P, R_co]:
        """Return the workflow with settings for its runs: `digest.options(run_id="digest-1").run(url="…")`."""
        given = _settings(
            f"Workflow {self.name!r}",
            run_id=run_id,
            store=store,
            durability=durability,
            on_failure=on_failure,
            timeout=timeout,
            checkpoint_every=checkpoint_every,
        )
        return BoundWorkflow(self, msgspec.structs.replace(self.settings, **given))

    def _trace(self) -> tuple[Graph, Mapping[str, NodeType[..., Any]]]:
        if self._traced is None:
            graph, node_types, places = trace_workflow(self.name, self.fn, self.inputs, self.stream_handles)
            faults = (*validate(graph, node_types), *_output_faults(graph, self.output_type))
            faults = faults or tuple(_output_type_faults(graph, node_types, self.input_types, self.output_type))
            if faults:
                raise InvalidGraph(self.name, [_placed(fault, places) for fault in faults])
            self._traced = graph, MappingProxyType(node_types)
        return self._traced

    if not TYPE_CHECKING:  # type checkers find the mistake because there is no such method

        def __call__(self, *args, **kwargs):
            if current_trace() is None:
                remedy = f"run it with {self.name}.run(…), or in async code with `await engine.start({self.name}, …)`."
            else:
                remedy = (
                    "there are no workflows inside workflows in this version. Write what both share as a plain function "
                    f"that calls the nodes, or start runs of their own: {self.name}.start_each(items)."
                )
            raise InvalidCall(f"Workflow {self.name!r}", [remedy], place_of_call())

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


class BoundWorkflow(Generic[P, R_co]):
    """A workflow with settings for its runs."""

    def __init__(self, workflow: Workflow[P, R_co], settings: RunSettings) -> None:
        self.workflow = workflow
        self.settings = settings

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the workflow and return its result."""
        return cast("R_co", _run(self.workflow, self.settings, self.workflow.bind(*args, **kwargs)))


@overload
def workflow(fn: Callable[P, R], /) -> Workflow[P, R]: ...


@overload
def workflow(
    *,
    name: str | None = None,
    durability: Durability | None = None,
    on_failure: OnFailure | None = None,
    timeout: float | timedelta | None = None,
    checkpoint_every: float | timedelta | None = None,
) -> Callable[[Callable[P, R]], Workflow[P, R]]: ...


def workflow(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    durability: Durability | None = None,
    on_failure: OnFailure | None = None,
    timeout: float | timedelta | None = None,
    checkpoint_every: float | timedelta | None = None,
) -> Any:
    """Declare a workflow: `@workflow`, or `@workflow(name="…", …)` with settings for its runs."""
    if fn is not None:
        return _declare(fn, name=None, settings=RunSettings())
    if name is not None and (not isinstance(name, str) or not name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidDeclaration("A workflow", [f"name={name!r} is not a name."])
    given = _settings(
        "A workflow",
        durability=durability,
        on_failure=on_failure,
        timeout=timeout,
        checkpoint_every=checkpoint_every,
    )
    return functools.partial(_declare, name=name, settings=RunSettings(**given))


_workflows: dict[str, Workflow[..., Any]] = {}


def declared_workflows() -> Mapping[str, Workflow[..., Any]]:
    """Return the workflows that this process has declared, by name. Of one name, the last counts."""
    return MappingProxyType(_workflows)


def _run(workflow: Workflow[..., Any], settings: RunSettings, inputs: dict[str, Any]) -> Any:
    if current_trace() is not None:
        raise GraphError(
            f"Workflow {workflow.name!r} cannot run while another one is traced ({place_of_call()}). "
            "Run it inside a node, or before."
        )
    # The one place where this package reaches up: for callers that are not async. Loaded when it is used, so that
    # declaring workflows does not load an engine.
    sync = importlib.import_module("perdure.engine.sync")
    chosen = msgspec.structs.asdict(settings)
    always = {"run_id": settings.run_id, "store": settings.store}
    others = {name: value for name, value in chosen.items() if name not in always and value is not None}
    return sync.run_workflow(workflow, inputs=inputs, **always, **others)


def _placed(fault: Fault, places: Mapping[str, str]) -> Fault:
    """Return the fault with the place in the user's code that it is about."""
    place = places.get(fault.node or OUTPUT, places[OUTPUT])
    return fault._replace(message=f"{fault.message.removesuffix('.')} ({place}).")


def _output_faults(graph: Graph, output_type: Any) -> tuple[Fault, ...]:
    """Return a fault if the function promises a result and returns none."""
    if graph.outputs or any(edge.target == OUTPUT for edge in graph.edges):
        return ()
    if any(member in (Any, NoneType) for member in members_of(output_type)):
        return ()
    message = f"The workflow promises a result ({describe(output_type)}), but its function returns nothing."
    return (Fault(None, "missing_output", message, "Return the result of a node, or annotate it `-> None`."),)


def _output_type_faults(
    graph: Graph, node_types: Mapping[str, NodeType[..., Any]], input_types: Mapping[str, Any], output_type: Any
) -> Iterator[Fault]:
    """Yield where what the function returns can never be what it is annotated to return. Of what is put together from several
    values only the named ones are looked at."""
    if output_type is Any:
        return
    nodes = {node.id: node for node in graph.nodes}
    several = Counter(edge.target_handle for edge in graph.edges if edge.target == OUTPUT and edge.mode != "first")
    for edge in graph.edges:
        if edge.target != OUTPUT or edge.target_handle in graph.outputs:
            continue
        if edge.source == INPUT:
            given = input_types.get(edge.source_handle, Any)
        else:
            node = nodes[edge.source]
            handles = outputs_of_type(node_types[node.type].of(node.data))
            given = next((handle.annotation for handle in handles if handle.name == edge.source_handle), Any)
        try:
            given = part_at(given, edge.path)
            wanted = part_at(output_type, () if edge.target_handle == DEFAULT_OUTPUT else (edge.target_handle,))
            # Several that are not alternatives are a list.
            wanted = item_of(wanted) if several[edge.target_handle] > 1 else wanted
        except (LookupError, TypeError):
            continue
        if any((get_origin(member) or member) in (set, frozenset) for member in members_of(wanted)):
            continue  # the result is made one, of whatever several values it is
        if edge.mode == "collect":
            given = types.GenericAlias(list, (given,))
        if not is_assignable(given, wanted):
            what = "what it returns" if edge.target_handle == DEFAULT_OUTPUT else f"its output {edge.target_handle!r}"
            origin = f"the input {edge.source_handle!r}" if edge.source == INPUT else f"node {edge.source!r}"
            message = f"The workflow promises {describe(wanted)}, but {what} is {describe(given)} from {origin}."
            yield Fault(None, "incompatible_types", message, "Convert it in a node, or correct an annotation.")


def _declare(fn: Any, *, name: str | None, settings: RunSettings) -> Workflow[..., Any]:
    if not inspect.isfunction(fn):
        raise InvalidDeclaration(repr(fn), ["it is not a function."])
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise InvalidDeclaration(
            fn.__qualname__, ["a workflow is traced, not run: write it as a plain `def` without await or yield."]
        )
    shape = shape_of(fn)
    problems: list[str] = []
    if shape.takes_context:
        problems.append("only nodes have a context: take it as the first parameter of a node.")
    if shape.open_inputs:
        problems.append("the inputs of a workflow are named: write them out instead of `**`.")
    problems.extend(problem for handle in shape.inputs if (problem := _input_problem(handle)) is not None)
    if problems:
        raise InvalidDeclaration(fn.__qualname__, problems)
    inputs = tuple(
        msgspec.structs.replace(handle, required=False) if handle.streaming else handle for handle in shape.inputs
    )
    declared: Workflow[..., Any] = Workflow(fn, name=name or fn.__name__, settings=settings, inputs=inputs)
    _workflows[declared.name] = declared
    return declared


def _input_problem(handle: Handle) -> str | None:
    if handle.streaming and handle.default is not msgspec.UNSET:
        return f"the input {handle.name!r} is a stream, which has no default: it is open until somebody closes it."
    if handle.default is msgspec.UNSET:
        return None
    try:
        plain = to_constant(handle.default, handle.annotation)
    except ValueError as error:
        return (
            f"the default of {handle.name!r} cannot be written into a graph: {error}. "
            "Annotate the input with the type of its default, or take None and choose the value in a node."
        )
    reason = check_constant(plain, handle.annotation)
    return None if reason is None else f"the default of {handle.name!r} does not fit its annotation: {reason}."


def _input(handle: Handle) -> Input:
    default = handle.default
    if default is not msgspec.UNSET:
        default = to_constant(default, handle.annotation)
    return Input(name=handle.name, schema=schema_of(handle.annotation), default=default)


def _settings(subject: str, **given: Any) -> dict[str, Any]:
    """Return the settings that are given, checked. Raises InvalidDeclaration with all that is wrong."""
    chosen = {name: value for name, value in given.items() if value is not None}
    problems: list[str] = []
    for name in chosen.keys() & {"run_id", "store"}:
        if not isinstance(chosen[name], str) or not chosen[name] or not is_text(chosen[name]):
            problems.append(f"{name}={chosen[name]!r} is not a text that UTF-8 can hold, or is empty.")
    for name, choices in (("durability", get_args(Durability)), ("on_failure", get_args(OnFailure))):
        if name in chosen and chosen[name] not in choices:
            problems.append(f"{name}={chosen[name]!r} is none of {', '.join(map(repr, choices))}.")
    for name in chosen.keys() & {"timeout", "checkpoint_every"}:
        if is_duration(chosen[name], above=timedelta(0)):
            chosen[name] = duration(chosen[name])
        else:
            problems.append(f"{name}={chosen[name]!r} is no time above zero, in seconds or as a timedelta.")
    if problems:
        raise InvalidDeclaration(subject, problems)
    return chosen
