"""Triggers: nodes that are fed from outside, and go on where they were.

A trigger gives a stream. Each item comes with an id and a cursor, which says how far the outside has been read: the item, and
that the cursor has moved, are recorded together. So whoever goes on after a crash reads from exactly there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Generic, TypeVar, cast, get_args, get_origin

from perdure.errors import CursorRegressed, GraphError
from perdure.graph.constants import from_constant
from perdure.graph.handles import BodyContext, properties_of

C = TypeVar("C")
T = TypeVar("T")


class TriggerInput(Generic[C, T]):
    """Something that has come from outside."""

    __slots__ = ("acknowledge", "cursor", "data", "input_id")

    def __init__(
        self,
        data: T,
        *,
        id: str,  # noqa: A002 -- as people say it
        cursor: C | None = None,
        acknowledge: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`acknowledge` is called when the input is durable; it may be called again for the same input after a crash."""
        self.data = data
        self.input_id = id
        self.cursor = cursor
        self.acknowledge = acknowledge


class Trigger(Generic[C, T]):
    """What your own triggers are made of:

        @node
        class Orders(Trigger[int, dict]):
            url: str

            async def inputs(self, ctx, cursor):
                while True:
                    for order in await fetch_after(self.url, cursor or 0):
                        cursor = order["number"]
                        yield TriggerInput(order, id=str(cursor), cursor=cursor)
                    await asyncio.sleep(10)

    A cursor is any value that can be stored. One that is not after the last one is refused.
    """

    def inputs(self, ctx: Any, cursor: C | None) -> AsyncIterator[TriggerInput[C, T]]:
        """Yield what comes from outside, after `cursor`: where an earlier attempt has stopped, or None at the beginning."""
        raise NotImplementedError("a trigger says in `inputs` what comes from outside")

    def is_after(self, cursor: C, last: C) -> bool:
        """Whether a cursor is further than another. Override it where `>` does not say so, as for numbers in texts."""
        return bool(cast("Any", cursor) > last)

    def problems(self) -> Iterable[str]:
        """Say what is wrong with how the trigger is configured, in whole sentences: its properties are set, and it does not run.

        It is asked when a graph is checked, and again before the trigger runs, when all its properties are known.
        """
        return ()

    async def run(self, ctx: BodyContext) -> AsyncIterator[T]:
        """Give everything that comes. The engine records each with its cursor."""
        require_no_problems(self)
        context: Any = ctx
        last: C | None = context.restored
        async for arrived in self.inputs(context, last):
            if arrived.cursor is not None:
                if last is not None and not self.is_after(arrived.cursor, last):
                    raise CursorRegressed(context.node_id, arrived.input_id, repr(arrived.cursor), repr(last))
                last = arrived.cursor
            yield cast("T", arrived)
            if arrived.cursor is not None:  # else a later attempt begins where this one did, and counts as it does
                context.begin_counting_anew()


def as_trigger(declared: object) -> type[Trigger[Any, Any]] | None:
    """Return what is declared as a node type if it is the class of a trigger."""
    is_trigger = isinstance(declared, type) and issubclass(declared, Trigger)
    return cast("type[Trigger[Any, Any]]", declared) if is_trigger else None


def item_type(cls: type[Trigger[Any, Any]]) -> Any:
    """Return what a trigger gives, as its class says it: `Trigger[int, Order]` gives orders."""
    for base in cls.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            if get_origin(generic) is Trigger:
                return get_args(generic)[1]
    return Any


def require_no_problems(trigger: Trigger[Any, Any]) -> None:
    """Raise GraphError, with all that is wrong, unless the trigger can run as it is configured."""
    if problems := list(trigger.problems()):
        raise GraphError(" ".join(problems))


def problems_of_trigger(cls: type[Trigger[Any, Any]], constants: Mapping[str, Any], fed: Collection[str]) -> list[str]:
    """Return what is wrong with a trigger that has these constants. Where edges feed it, nothing is known before it runs."""
    if fed:
        return []
    annotations = {handle.name: handle.annotation for handle in properties_of(cls)}
    trigger = cls()
    for name, constant in constants.items():
        setattr(trigger, name, from_constant(constant, annotations.get(name, Any)))
    return list(trigger.problems())
