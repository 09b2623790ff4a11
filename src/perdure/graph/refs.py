"""Refs: what stands for the values of a run while a workflow is traced.

A Ref can be handed to nodes, whole or in part (`page.title`, `rows[0]`). Whatever would need the value itself raises
`MisusedRef` with the remedy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol

import msgspec

from perdure.errors import MisusedRef
from perdure.graph.constants import MAX_DEPTH, is_array, is_object
from perdure.graph.model import INPUT, PathStep
from perdure.graph.wiring import Alternatives, Origin, Text
from perdure.ids import NodeId


class NamedHandles(msgspec.Struct, frozen=True):
    """All that a node returns when it names its handles: one of them has to be chosen. Without names, any will do."""

    node: NodeId
    names: tuple[str, ...] | None


RefValue = Origin | Alternatives | Text | NamedHandles


class RefOwner(Protocol):
    """The trace that a Ref belongs to."""

    @property
    def workflow(self) -> str: ...


_IN_A_NODE = "Do it inside a node."
_CONDITION = "For a choice, put the calls under `with when(value):` or `with unless(value):`."
_ITEMS = (
    "For one known part, write `values[0]` or `values.name`; several values have names if the node returns "
    "`Outputs(a=…, b=…)`. To call a node for each item, write `f.map(values)`, and `collect(f.map(values))` for a list of what "
    "that gives; or pass the whole value to a node that goes through it."
)
_TEXT = "Join texts with `text('…', value, '…')`, or inside a node."


def _refused(what: str, remedy: str) -> Callable[..., NoReturn]:
    def refuse(self: Ref, *_: object) -> NoReturn:
        raise MisusedRef(
            f"{what} needs the value itself, but {self!r} exists only in a run ({place_of_call()}). {remedy}"
        )

    return refuse


class Ref:
    """Stands for a value of a run while the workflow is traced."""

    __slots__ = ("_owner", "_value")

    _owner: RefOwner
    _value: RefValue

    def __init__(self, owner: RefOwner, value: RefValue) -> None:
        object.__setattr__(self, "_owner", owner)
        object.__setattr__(self, "_value", value)

    def __getattr__(self, name: str) -> Ref:
        if name.startswith("_"):  # Python and its tools ask for such names; they never mean a part of the value
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, step: PathStep) -> Ref:
        if isinstance(step, bool) or not isinstance(step, str | int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MisusedRef(
                f"{self!r} cannot be taken apart with {step!r} ({place_of_call()}): a part is named by a text or a "
                "number. Take it apart inside a node."
            )
        return Ref(self._owner, self._part(step))

    def __repr__(self) -> str:
        return f"<{_words_for(self._value)}>"

    def _part(self, step: PathStep) -> RefValue:
        match self._value:
            case NamedHandles(node=node, names=names):
                return Origin(node, _chosen_handle(node, names, step))
            case Origin(mode=None) as origin:
                return _extended(origin, step)
            case Alternatives(origins=origins):
                return Alternatives(tuple(_extended(origin, step) for origin in origins))
            case _:
                raise MisusedRef(
                    f"{self!r} cannot be taken apart ({place_of_call()}): it is put together only in a run. "
                    "Take the part before, or inside a node."
                )

    __bool__ = _refused("A test of truth", _CONDITION)
    __eq__ = _refused("A comparison", f"Compare inside a node. {_CONDITION}")  # pyright: ignore[reportAssignmentType]
    __ne__ = _refused("A comparison", f"Compare inside a node. {_CONDITION}")  # pyright: ignore[reportAssignmentType]
    __lt__ = __le__ = __gt__ = __ge__ = _refused("A comparison", f"Compare inside a node. {_CONDITION}")
    __hash__ = _refused("A place in a set or as a key", _IN_A_NODE)  # pyright: ignore[reportAssignmentType]
    __iter__ = __reversed__ = _refused("Going through the items", _ITEMS)
    __aiter__ = _refused("Going through the items", _ITEMS)
    __len__ = __contains__ = _refused("Looking at the items", _IN_A_NODE)
    __str__ = _refused("A text", _TEXT)  # pyright: ignore[reportAssignmentType]
    __format__ = _refused("A text", _TEXT)  # pyright: ignore[reportAssignmentType]
    __bytes__ = __int__ = __float__ = __complex__ = __index__ = _refused("A conversion", _IN_A_NODE)
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refused("Arithmetic", _IN_A_NODE)
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _refused("Arithmetic", _IN_A_NODE)
    __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refused("Arithmetic", _IN_A_NODE)
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refused("Arithmetic", _IN_A_NODE)
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refused("Arithmetic", _IN_A_NODE)
    __neg__ = __pos__ = __abs__ = __invert__ = __round__ = _refused("Arithmetic", _IN_A_NODE)
    __call__ = _refused("A call", _IN_A_NODE)
    __await__ = _refused("`await`", "In a workflow, nodes are called without it: the run waits.")
    __enter__ = _refused("`with`", _CONDITION)
    __exit__ = _refused("`with`", _CONDITION)
    __setattr__ = _refused("A change", _IN_A_NODE)  # pyright: ignore[reportAssignmentType]
    __delattr__ = _refused("A change", _IN_A_NODE)  # pyright: ignore[reportAssignmentType]
    __setitem__ = __delitem__ = _refused("A change", _IN_A_NODE)


def value_of(ref: object) -> RefValue | None:
    """Return what a Ref stands for; None for anything that is no Ref."""
    return ref._value if isinstance(ref, Ref) else None  # pyright: ignore[reportPrivateUsage]


def owner_of(ref: Ref) -> RefOwner:
    """Return the trace in which a Ref was made."""
    return ref._owner  # pyright: ignore[reportPrivateUsage]


def find_ref(values: Iterable[Any]) -> Ref | None:
    """Return a Ref among the values or inside them, if there is one."""
    return next((ref for value in values if (ref := _first_ref(value)) is not None), None)


_place: ContextVar[str | None] = ContextVar("perdure_place", default=None)


@contextmanager
def placed(place: str) -> Generator[None]:
    """Say what led here where it is no call: what a workflow returns is looked at when its function has ended."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


def place_of_call() -> str:
    """Return the file and line outside this package that led here."""
    if (place := _place.get()) is not None:
        return place
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("perdure.graph."):
        frame = frame.f_back
    return "unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def choices(names: tuple[str, ...] | None) -> str:
    """Return the words for the handles that can be chosen."""
    return "`result.name` for any name" if names is None else ", ".join(names) or "none"


def _chosen_handle(node: NodeId, names: tuple[str, ...] | None, step: PathStep) -> str:
    if isinstance(step, str) and (names is None or step in names):
        return step
    raise MisusedRef(f"Node {node!r} has no output {step!r} ({place_of_call()}). It has {choices(names)}.")


def _extended(origin: Origin, step: PathStep) -> Origin:
    return msgspec.structs.replace(origin, path=(*origin.path, step))


def _words_for(value: RefValue) -> str:
    match value:
        case Origin(node=node, handle=handle, path=path, mode=mode):
            source = f"input {handle!r}" if node == INPUT else f"output {handle!r} of node {node!r}"
            part = "".join(f"[{step!r}]" for step in path)
            return f"{'all items of ' if mode == 'collect' else ''}{source}{part}"
        case Alternatives(origins=origins):
            return "first of " + ", ".join(map(_words_for, origins))
        case Text():
            return "text with values of the run"
        case NamedHandles(node=node):
            return f"outputs of node {node!r}"


def _first_ref(value: Any) -> Ref | None:
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        part, depth = pending.pop()
        if isinstance(part, Ref):
            return part
        if depth > MAX_DEPTH:
            continue
        if is_object(part):
            pending.extend((member, depth + 1) for member in part.values())
        elif is_array(part):
            pending.extend((member, depth + 1) for member in part)
    return None
