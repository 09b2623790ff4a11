"""Handles: the named, typed inputs and outputs of a node, read from a function's annotations."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ClassVar, Protocol, TypeVar, cast, get_args, get_origin

import msgspec

from perdure.errors import GraphError, InvalidDeclaration
from perdure.graph.annotations import hints_of_class, is_assignable, members_of, resolve_each
from perdure.graph.constants import check_constant, schema_of
from perdure.graph.model import DEFAULT_OUTPUT

__all__ = [
    "BodyContext",
    "Handle",
    "Outputs",
    "Shape",
    "Stream",
    "check_constant",
    "hints_of",
    "inputs_of",
    "is_assignable",
    "names_of",
    "outputs_of",
    "properties_of",
    "schema_of",
    "shape_of",
]

T_co = TypeVar("T_co", covariant=True)
NamedT = TypeVar("NamedT", bound="Outputs")

_ITERATORS = (collections.abc.Iterator, collections.abc.Generator)
_ASYNC_ITERATORS = (collections.abc.AsyncIterator, collections.abc.AsyncGenerator)
_ITERABLES = (*_ITERATORS, *_ASYNC_ITERATORS, collections.abc.Iterable, collections.abc.AsyncIterable)
_CONTEXT_NAMES = ("Context", "SyncContext")
_AWAITABLES = (collections.abc.Coroutine, collections.abc.Awaitable)


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """A named, typed input or output. A streaming one carries many items, each annotated `annotation`."""

    name: str
    annotation: Any = Any
    required: bool = True
    default: Any = msgspec.UNSET
    keyword_only: bool = False
    streaming: bool = False


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What its signature says about a function as the body of a node."""

    inputs: tuple[Handle, ...]
    outputs: tuple[Handle, ...]
    takes_context: bool
    open_inputs: bool
    """Whether it takes any name besides its inputs, by `**names`."""
    open_outputs: bool
    """Whether it names its output handles as it likes, by plain `Outputs`."""
    is_async: bool
    is_generator: bool


class Stream(Protocol[T_co]):
    """Items that arrive one by one. A parameter annotated `Stream[T]` reads them while they arrive.

    An async body reads them with `async for`, any other with `for`.
    """

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    def __iter__(self) -> Iterator[T_co]: ...

    if typing.TYPE_CHECKING:  # what stands for a stream while a workflow is traced

        def __getitem__(self, part: str | int, /) -> Stream[Any]:
            """In a workflow: a part of each item, or one of several outputs."""
            ...

        def __getattr__(self: Stream[NamedT], output: str, /) -> Stream[Any]:
            """In a workflow: one of several outputs. Only a stream of Outputs has them."""
            ...


class BodyContext:
    """What the engine's `Context` is: known here only so that declarations can tell it from a parameter for data."""


class Outputs:
    """What a node returns to name several handles: `Outputs(left=…, right=…)`. A handle that is not named stays empty.

    A subclass says beforehand which handles there are and what they carry, so that both are checked:

        class Halves(Outputs):
            left: list[int]
            right: list[int]
    """

    def __init__(self, **values: Any) -> None:
        self._values = values
        declared = names_of(type(self))
        if declared is not None and (unknown := values.keys() - declared):
            wrong, known = (", ".join(map(repr, sorted(names))) for names in (unknown, declared))
            raise GraphError(f"{type(self).__name__} has no handle {wrong}. It has {known or 'none'}.")

    def handles(self) -> dict[str, Any]:
        """Return the value on each handle that is named."""
        return dict(self._values)

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"{type(self).__name__} holds no value for the handle {name!r}")

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._values == self._values

    __hash__: ClassVar[None]  # type: ignore[assignment]  # it holds values that may change

    # Said outright, because for a type checker `__getattr__` would make it an iterator and a coroutine.
    __iter__: ClassVar[None] = None
    __next__: ClassVar[None] = None
    __aiter__: ClassVar[None] = None
    __anext__: ClassVar[None] = None
    __await__: ClassVar[None] = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


def names_of(cls: type[Outputs]) -> dict[str, Any] | None:
    """Return the handles that a subclass of Outputs declares, with their annotations; None if any name will do."""
    if cls is Outputs:
        return None
    return {name: annotation for name, annotation in hints_of_class(cls).items() if not name.startswith("_")}


def hints_of(fn: Callable[..., Any], localns: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the resolved annotations of a function; what cannot be resolved is Any.

    `localns` are names that only the place of declaration knows, as for a function inside a function.
    """
    try:
        return typing.get_type_hints(fn, localns=localns, include_extras=True)
    except Exception:  # a name that exists only for type checkers, or an annotation that is no type
        unwrapped = inspect.unwrap(fn)
        return resolve_each(inspect.get_annotations(fn), getattr(unwrapped, "__globals__", {}), localns or {})


def shape_of(fn: Callable[..., Any], *, is_method: bool = False, localns: dict[str, Any] | None = None) -> Shape:
    """Read the signature of a function that is to be the body of a node.

    Raises InvalidDeclaration, with all that is wrong, if values could not reach its parameters by name.
    """
    hints = hints_of(fn, localns)
    parameters = list(inspect.signature(fn).parameters.values())[1 if is_method else 0 :]
    with_context = bool(parameters) and _is_for_context(parameters[0], hints)
    if with_context:
        del parameters[0]
    returned = hints.get("return", Any)
    if problems := [*_parameter_problems(parameters), *_return_problems(fn, returned)]:
        raise InvalidDeclaration(getattr(fn, "__qualname__", repr(fn)), problems)
    is_generator = _is_generator(fn, returned)
    item = _item_of(returned) if is_generator or get_origin(returned) in _AWAITABLES else returned
    named = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    return Shape(
        inputs=tuple(_input(parameter, hints.get(parameter.name, Any)) for parameter in named),
        outputs=_outputs(item, streaming=is_generator),
        takes_context=with_context,
        open_inputs=len(named) < len(parameters),
        open_outputs=_outputs_class(item) is Outputs,
        is_async=_is_async(fn, returned),
        is_generator=is_generator,
    )


def inputs_of(fn: Callable[..., Any]) -> tuple[Handle, ...]:
    """Return the inputs of a function: its parameters but for the context."""
    return shape_of(fn).inputs


def outputs_of(fn: Callable[..., Any]) -> tuple[Handle, ...]:
    """Return the outputs of a function: one called `output`, or those of the Outputs that it returns or yields.

    None at all for plain `Outputs`: then every name is possible.
    """
    return shape_of(fn).outputs


def properties_of(cls: type[Any]) -> tuple[Handle, ...]:
    """Return the properties of a class: its public attributes that hold data, annotated or not.

    One that is annotated and has no value must be given. What is annotated ClassVar is no property.
    """
    hints = hints_of_class(cls)
    values = {
        name: value
        for base in reversed(cls.__mro__[:-1])
        for name, value in vars(base).items()
        if not _is_machinery(value)
    }
    return tuple(
        Handle(
            name=name,
            annotation=hints.get(name, Any),
            required=name not in values,
            default=values.get(name, msgspec.UNSET),
            keyword_only=True,
        )
        for name in dict.fromkeys([*hints, *values])
        if not name.startswith("_") and ClassVar not in (hints.get(name), get_origin(hints.get(name)))
    )


def _is_for_context(parameter: inspect.Parameter, hints: dict[str, Any]) -> bool:
    """Whether a first parameter is for the context: it is annotated `Context`, or named `ctx`."""
    if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
        return False
    return parameter.name == "ctx" or any(map(_is_context, (parameter.annotation, hints.get(parameter.name))))


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, str):  # a name that only type checkers resolve
        return annotation.rpartition(".")[2] in _CONTEXT_NAMES
    return isinstance(annotation, type) and (
        issubclass(annotation, BodyContext) or annotation.__name__ in _CONTEXT_NAMES
    )


def _parameter_problems(parameters: list[inspect.Parameter]) -> Iterator[str]:
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            yield f"the parameter {parameter.name!r} is positional-only, but values arrive by name: remove the '/'."
        elif parameter.kind is parameter.VAR_POSITIONAL:
            yield f"'*{parameter.name}' has no names that could be handles: take a list instead."


def _return_problems(fn: Callable[..., Any], returned: Any) -> Iterator[str]:
    if inspect.iscoroutinefunction(fn) and get_origin(returned) in (*_ITERATORS, *_ASYNC_ITERATORS):
        yield "it returns an iterator instead of being one: write it with `yield`."


def _is_generator(fn: Callable[..., Any], returned: Any) -> bool:
    """Whether a call gives a stream: the function yields, or is annotated to return an iterator."""
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        return True
    return not inspect.iscoroutinefunction(fn) and get_origin(returned) in (*_ITERATORS, *_ASYNC_ITERATORS)


def _is_async(fn: Callable[..., Any], returned: Any) -> bool:
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        return True
    return not inspect.isgeneratorfunction(fn) and get_origin(returned) in (*_ASYNC_ITERATORS, *_AWAITABLES)


def _item_of(annotation: Any) -> Any:
    """Return what an iterator yields or an awaitable gives, by its annotation."""
    arguments = get_args(annotation)
    if not arguments or get_origin(annotation) not in (*_ITERABLES, *_AWAITABLES):
        return Any
    return arguments[-1] if get_origin(annotation) in _AWAITABLES else arguments[0]


def _input(parameter: inspect.Parameter, annotation: Any) -> Handle:
    has_default = parameter.default is not parameter.empty
    streams = [member for member in members_of(annotation) if member is Stream or get_origin(member) is Stream]
    return Handle(
        name=parameter.name,
        annotation=next(iter(get_args(streams[0])), Any) if streams else annotation,
        required=not has_default,
        default=parameter.default if has_default else msgspec.UNSET,
        keyword_only=parameter.kind is parameter.KEYWORD_ONLY,
        streaming=bool(streams),
    )


def _outputs(item: Any, *, streaming: bool) -> tuple[Handle, ...]:
    cls = _outputs_class(item)
    declared = {DEFAULT_OUTPUT: item} if cls is None else names_of(cls) or {}
    return tuple(Handle(name=name, annotation=hint, streaming=streaming) for name, hint in declared.items())


def _outputs_class(annotation: Any) -> type[Outputs] | None:
    """Return the kind of Outputs that is annotated, if it is one."""
    members = [member for member in members_of(annotation) if member is not type(None)]
    if len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], Outputs):
        return members[0]
    return None


def _is_machinery(value: Any) -> bool:
    """Whether a class attribute is part of how the class works, not data."""
    return isinstance(value, type | types.ModuleType) or hasattr(cast("object", type(value)), "__get__")
