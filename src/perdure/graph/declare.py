"""Declaring node types: `@node` on functions, generator functions and classes. `@workflow` is in `workflows`.

Inside a workflow a node type records a node when it is called; anywhere else it runs the plain function.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from perdure.errors import GraphError, InvalidCall, InvalidDeclaration, MisusedRef
from perdure.graph.calls import bind_arguments, did_you_mean
from perdure.graph.handles import BodyContext, Handle, Outputs, Shape, Stream, shape_of
from perdure.graph.lifecycle import ClassShape, class_problems, run_class, shape_of_class
from perdure.graph.model import STREAM_INPUT, JoinMode, Leftovers
from perdure.graph.policy import (
    Backoff,
    Executor,
    OnItemError,
    Policy,
    Replay,
    RetryOn,
    Seconds,
    policy_from,
    problems_of,
)
from perdure.graph.refs import find_ref, place_of_call
from perdure.graph.registry import add_type, declared_types
from perdure.graph.schemas import check_schema
from perdure.graph.source import Source, source_of
from perdure.graph.trace import Trace, current_trace, know_stream_input
from perdure.graph.triggers import Trigger, as_trigger, item_type, problems_of_trigger
from perdure.graph.workflows import BoundWorkflow, RunSettings, Workflow, declared_workflows, workflow

__all__ = [
    "Backoff",
    "BodyContext",
    "BoundWorkflow",
    "Handle",
    "NodeDecorator",
    "NodeType",
    "Outputs",
    "Policy",
    "RunSettings",
    "Source",
    "Stream",
    "Workflow",
    "declared_types",
    "declared_workflows",
    "node",
    "workflow",
]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
C = TypeVar("C", bound=BodyContext)

_Items = Stream[T] | Iterable[T]

Check = Callable[[Mapping[str, Any], Collection[str]], Iterable[str]]
"""Gets the constants of a node, each of which fits its handle, and the names of the handles that edges feed. Gives what is wrong,
in whole sentences."""


class NodeType(Generic[P, R_co]):
    """What a node can run: a function or class with its handles and its policy."""

    def __init__(self, fn: Callable[..., Any], *, name: str, policy: Policy, shape: Shape | ClassShape) -> None:
        body = shape.body if isinstance(shape, ClassShape) else shape
        self.fn = fn
        self.name = name
        self.policy = policy
        self.class_shape = shape if isinstance(shape, ClassShape) else None
        self.inputs: tuple[Handle, ...] = shape.inputs
        self.outputs: tuple[Handle, ...] = body.outputs
        self.takes_context = body.takes_context
        self.open_inputs = body.open_inputs
        self.open_outputs = body.open_outputs
        self.is_async = body.is_async
        self.is_generator = body.is_generator
        self.source: Source = source_of(fn)
        self.check: Check | None = None
        """Says what is wrong with the constants of a node, if that shows before it runs."""
        self.declared: NodeType[P, R_co] = self
        """Itself, or of a copy that has an id or a stage for one call, what was declared."""
        self.node_id: str | None = None
        self.stage: str | None = None
        functools.update_wrapper(self, fn, updated=())

    @property
    def properties(self) -> tuple[Handle, ...]:
        """Those of the inputs that are set as attributes of a class node, not passed to its method."""
        return () if self.class_shape is None else self.class_shape.properties

    @property
    def label(self) -> str:
        """What nodes of this type are called, unless they are given an id."""
        label = self.fn.__name__
        return label if label.isidentifier() else self.name.rpartition(".")[2]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        trace = current_trace()
        if trace is not None:
            arguments = bind_arguments(f"Node type {self.label!r}", self.inputs, args, kwargs, is_open=self.open_inputs)
            return cast("R_co", trace.call(self, arguments))
        if (ref := find_ref([*args, *kwargs.values()])) is not None:
            raise MisusedRef(f"{self.label} got {ref!r} outside the workflow it belongs to ({place_of_call()}).")
        if self.class_shape is not None:
            return cast("R_co", run_class(cast("type[Any]", self.fn), self.class_shape, args, kwargs))
        return cast("R_co", self.fn(*args, **kwargs))

    # What a generator gives for each item is one stream. The ignored errors say that not every node type is a generator, which is
    # what choosing between overloads is for.

    @overload
    def map(  # type: ignore[misc]
        self: Callable[Concatenate[T, ...], Stream[R]],
        items: _Items[T],
        /,
        *,
        join: JoinMode | None = None,
        leftovers: Leftovers = "fail",
        **held: Any,
    ) -> Stream[R]: ...

    @overload
    def map(  # type: ignore[misc]
        self: Callable[Concatenate[T, U, ...], Stream[R]],
        items: _Items[T],
        more: _Items[U],
        /,
        *,
        join: JoinMode | None = None,
        leftovers: Leftovers = "fail",
        **held: Any,
    ) -> Stream[R]: ...

    @overload
    def map(  # type: ignore[misc]
        self: Callable[Concatenate[T, U, V, ...], Stream[R]],
        items: _Items[T],
        more: _Items[U],
        most: _Items[V],
        /,
        *,
        join: JoinMode | None = None,
        leftovers: Leftovers = "fail",
        **held: Any,
    ) -> Stream[R]: ...

    @overload
    def map(
        self: Callable[Concatenate[T, ...], R],
        items: _Items[T],
        /,
        *,
        join: JoinMode | None = None,
        leftovers: Leftovers = "fail",
        **held: Any,
    ) -> Stream[R]: ...

    @overload
    def map(
        self: Callable[Concatenate[T, U, ...], R],
        items: _Items[T],
        more: _Items[U],
        /,
        *,
        join: JoinMode | None = None,
        leftovers: Leftovers = "fail",
        **held: Any,
    ) -> Stream[R]: ...

    @overload
    def map(
        self: Callable[Concatenate[T, U, V, ...], R],
        items: _Items[T],
        more: _Items[U],
        most: _Items[V],
        /,
        *,
        join: JoinMode | None = None,
        leftovers: Leftovers = "fail",
        **held: Any,
    ) -> Stream[R]: ...

    def map(
        self: Any,
        items: Any,
        /,
        *more: Any,
        join: JoinMode | None = None,
        leftovers: Leftovers = "fail",
        **held: Any,
    ) -> Any:
        """Call the node once per item of the positional arguments, which are streams or lists, and give a stream.

        Keyword arguments are single values, the same for every item. Streams that do not come from one source need a
        `join`: "zip" takes one item of each, "latest" the last item of each whenever one has a further item. Where the
        shortest of zipped streams has ended and others have not, the node fails, unless it drops their `leftovers`.
        """
        return _map_call(self, (items, *more), held, join, leftovers)

    def of(self, data: Mapping[str, Any]) -> NodeType[..., Any]:
        """Return the type of a node that has these constants: this one, unless they say which handles the node has.

        Raises LookupError, with words that follow the node's name, if they name something that is not known here.
        """
        return self

    def named(self, node_id: str) -> NodeType[P, R_co]:
        """Return this node type for a call that chooses the id of its node: `fetch.named("first")(url)`."""
        if not isinstance(node_id, str) or not node_id or node_id.startswith("$"):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GraphError(
                f"{node_id!r} cannot be the id of a node ({place_of_call()}): use a text without a '$' in front."
            )
        chosen = copy.copy(self)
        chosen.node_id = node_id
        return chosen

    def options(self, *, stage: str) -> NodeType[P, R_co]:
        """Return this node type for a call whose node belongs to a stage."""
        chosen = copy.copy(self)
        chosen.stage = stage
        return chosen

    def __repr__(self) -> str:
        return f"<node type {self.name}>"


class _AsyncRun(Protocol[R_co]):
    def run(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, R_co]: ...


class _StreamRun(Protocol[R_co]):
    def run(self, *args: Any, **kwargs: Any) -> Iterator[R_co] | AsyncIterator[R_co]: ...


class _Run(Protocol[R_co]):
    def run(self, *args: Any, **kwargs: Any) -> R_co: ...


class _AsyncProcess(Protocol[R_co]):
    def process(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, R_co]: ...


class _StreamProcess(Protocol[R_co]):
    def process(self, *args: Any, **kwargs: Any) -> Iterator[R_co] | AsyncIterator[R_co]: ...


class _Process(Protocol[R_co]):
    def process(self, *args: Any, **kwargs: Any) -> R_co: ...


class _Unlike:
    """Nothing is this. A function whose first parameter admits it takes anything there, and that may be the context."""

    __hash__: ClassVar[None]  # type: ignore[assignment]


class NodeDecorator:
    """What `node` is: declares node types, with the options it was made with.

    On a class, mypy does not see what a decorator returns: write `summarize = node(Summarizer)` for it.
    """

    def __init__(self, name: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        self._name = name
        self._options = options or {}

    @overload
    def __call__(self, cls: type[_AsyncRun[R]], /) -> NodeType[..., R]: ...
    @overload
    def __call__(self, cls: type[_StreamRun[R]], /) -> NodeType[..., Stream[R]]: ...
    @overload
    def __call__(self, cls: type[_Run[R]], /) -> NodeType[..., R]: ...
    @overload
    def __call__(self, cls: type[_AsyncProcess[R]], /) -> NodeType[..., R]: ...
    @overload
    def __call__(self, cls: type[_StreamProcess[R]], /) -> NodeType[..., Stream[R]]: ...
    @overload
    def __call__(self, cls: type[_Process[R]], /) -> NodeType[..., R]: ...

    @overload
    def __call__(
        self, fn: Callable[Concatenate[_Unlike, P], Iterator[T] | AsyncIterator[T]], /
    ) -> NodeType[..., Stream[T]]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[_Unlike, P], Coroutine[Any, Any, R]], /) -> NodeType[..., R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[_Unlike, P], R], /) -> NodeType[..., R]: ...

    @overload
    def __call__(
        self, fn: Callable[Concatenate[C, P], Iterator[T] | AsyncIterator[T]], /
    ) -> NodeType[P, Stream[T]]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], /) -> NodeType[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[C, P], R], /) -> NodeType[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, Iterator[T] | AsyncIterator[T]], /) -> NodeType[P, Stream[T]]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> NodeType[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> NodeType[P, R]: ...

    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        retries: int = 0,
        backoff: Backoff | Seconds = ...,
        retry_on: RetryOn | Sequence[RetryOn] = (),
        timeout: Seconds | None = None,
        concurrency: int = 1,
        ordered: bool = True,
        pure: bool = False,
        cache: bool = False,
        once: bool = False,
        probe: Callable[..., Any] | None = None,
        executor: Executor = "auto",
        queue: str = "default",
        replay: Replay = "compare",
        on_item_error: OnItemError = "fail",
    ) -> NodeDecorator: ...

    def __call__(self, fn: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
        if fn is not None:
            return _declare(fn, self._name, self._options, _locals_at_declaration(fn))
        known = {option: value for option, value in options.items() if option in Policy.__struct_fields__}
        unknown = [_unknown_option(option) for option in sorted(options.keys() - known)]
        if problems := [*unknown, *_name_problems(name), *problems_of(known)]:
            raise InvalidDeclaration("A node type", problems)
        return NodeDecorator(name, options)


node = NodeDecorator()
"""Declares a node type: `@node`, or `@node(retries=3, …)` with a policy."""


def _map_call(
    node_type: NodeType[..., Any],
    items: tuple[Any, ...],
    held: dict[str, Any],
    join: JoinMode | None,
    leftovers: Leftovers,
) -> Any:
    trace: Trace | None = current_trace()
    subject = f"Node type {node_type.label!r}"
    if trace is None:
        raise MisusedRef(f"{node_type.label}.map only means something inside a @workflow function ({place_of_call()}).")
    arguments = bind_arguments(subject, node_type.inputs, items, held, is_open=node_type.open_inputs)
    mapped = [handle.name for handle in node_type.inputs if not handle.keyword_only][: len(items)]
    problems = [
        f"{handle.name!r} reads a whole stream: call it without `.map`."
        for handle in node_type.inputs
        if handle.name in mapped and handle.streaming
    ]
    if join not in (None, "zip", "latest"):
        problems.append(f"join={join!r} is neither 'zip' nor 'latest'.")
    if leftovers not in ("fail", "drop"):
        problems.append(f"leftovers={leftovers!r} is neither 'fail' nor 'drop'.")
    elif leftovers == "drop" and join != "zip":
        problems.append("leftovers='drop' needs join='zip': nothing else leaves any.")
    if problems:
        raise InvalidCall(subject, problems, place_of_call())
    return trace.call(node_type, arguments, mapped=mapped, join=join, leftovers=leftovers)


def _declare(
    fn: Any, name: str | None, options: Mapping[str, Any], localns: dict[str, Any] | None
) -> NodeType[..., Any]:
    if not inspect.isfunction(fn) and not inspect.isclass(fn):
        kind = "already a node type" if isinstance(fn, NodeType) else f"a {type(cast('object', fn)).__name__}"
        raise InvalidDeclaration(repr(cast("object", fn)), [f"it is {kind}, not a function or a class."])
    if inspect.isclass(fn):
        if problems := class_problems(fn):
            raise InvalidDeclaration(fn.__qualname__, problems)
        of_class = shape_of_class(fn, localns=localns)
        trigger = as_trigger(fn)
        shape: Shape | ClassShape = of_class if trigger is None else _shape_of_trigger(trigger, of_class)
    else:
        shape = shape_of(fn, localns=localns)
    if name is None and not fn.__name__.isidentifier():
        raise InvalidDeclaration(fn.__qualname__, ["it has no name of its own: give it one, @node(name=…)."])
    policy = policy_from(options)
    if problems := list(_body_problems(fn, shape.body if isinstance(shape, ClassShape) else shape, policy)):
        raise InvalidDeclaration(fn.__qualname__, problems)
    declared: NodeType[..., Any] = NodeType(fn, name=name or source_of(fn).name, policy=policy, shape=shape)
    if (trigger := as_trigger(fn)) is not None:
        declared.check = functools.partial(problems_of_trigger, trigger)
    add_type(declared)
    return declared


def _shape_of_trigger(cls: type[Trigger[Any, Any]], shape: ClassShape) -> ClassShape:
    """Return the shape with what the trigger gives: its method is the same for all triggers, and does not say."""
    outputs = tuple(msgspec.structs.replace(handle, annotation=item_type(cls)) for handle in shape.body.outputs)
    return msgspec.structs.replace(shape, body=msgspec.structs.replace(shape.body, outputs=outputs))


def _body_problems(fn: Callable[..., Any], body: Shape, policy: Policy) -> Iterator[str]:
    if policy.executor == "auto":
        return
    if body.is_async:
        yield f"executor={policy.executor!r} is for blocking code, but it is async: leave the executor to perdure."
    if policy.executor == "process":
        if body.is_generator:
            yield "a generator cannot yield out of another process: use executor='thread', or return a list."
        if any(handle.streaming for handle in body.inputs):
            yield "a stream cannot be read from another process: use executor='thread', or take a list."
        if "<locals>" in fn.__qualname__ or not fn.__name__.isidentifier():
            yield "another process cannot find it inside a function: declare it at the top of a module."


def _name_problems(name: Any) -> Iterator[str]:
    if name is not None and (not isinstance(name, str) or not name or name.startswith("$")):
        yield f"name={name!r} is not a name: use a text without a '$' in front."


_OTHER_WORDS = {"retry": "retries", "attempts": "retries", "max_attempts": "retries", "delay": "backoff"}
"""What other libraries call our options, where the spelling alone would lead astray."""


def _unknown_option(option: str) -> str:
    meant = f" (did you mean {_OTHER_WORDS[option]!r}?)" if option in _OTHER_WORDS else None
    return f"there is no option {option!r}{meant or did_you_mean(option, Policy.__struct_fields__)}."


def _locals_at_declaration(fn: Any) -> dict[str, Any] | None:
    """Return the names around a function that is declared inside a function: its annotations may use them."""
    if "<locals>" not in getattr(fn, "__qualname__", ""):
        return None
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return None if frame is None else dict(frame.f_locals)


async def _stream_input(schema: dict[str, Any] | None = None) -> AsyncIterator[Any]:
    """What stands for an input that is a stream. In a run the engine gives its items; by itself it has none."""
    nothing: tuple[Any, ...] = ()
    for item in nothing:
        yield item


_declared_input = NodeDecorator(STREAM_INPUT)(_stream_input)
_declared_input.check = check_schema
know_stream_input(_declared_input)
