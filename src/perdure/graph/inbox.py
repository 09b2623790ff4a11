"""A trigger that is fed by whoever has something for it: `orders = inbox(dict)`, and `engine.deliver(run, "inbox", order)`."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypeVar, cast, overload

from perdure.graph.constants import schema_of
from perdure.graph.declare import NodeDecorator, NodeType, Stream
from perdure.graph.model import INBOX
from perdure.graph.schemas import check_schema

T = TypeVar("T")

CursorOrder = Literal["number", "text"]
"""How cursors follow each other: "10" comes after "9" as a number, and before it as a text."""


async def _inbox(schema: dict[str, Any] | None = None, order: CursorOrder = "number") -> AsyncIterator[Any]:
    """What stands for an inbox. In a run the engine gives its items; by itself it has none."""
    nothing: tuple[Any, ...] = ()
    for item in nothing:
        yield item


_inbox.__name__ = "inbox"


class Inbox:
    """What `inbox` is: called inside a workflow, it adds a node that is fed from outside."""

    def __init__(self, node_type: NodeType[..., Any]) -> None:
        self._node_type = node_type

    @overload
    def __call__(self, schema: type[T], *, order: CursorOrder = ...) -> Stream[T]: ...

    @overload
    def __call__(self, schema: Any = ..., *, order: CursorOrder = ...) -> Stream[Any]: ...

    def __call__(self, schema: Any = Any, *, order: CursorOrder = "number") -> Any:
        """Give what is delivered, in that order, until the run is stopped. What does not fit the type is refused."""
        return self._node_type(schema=schema_of(schema), order=order)

    def named(self, node_id: str) -> Inbox:
        """Return this for a call that chooses the id of its node: `inbox.named("orders")(dict)`."""
        chosen = copy.copy(self)
        chosen._node_type = self._node_type.named(node_id)
        return chosen


def is_further(cursor: str, last: str, order: str) -> bool:
    """Whether a cursor comes after another. Raises ValueError if they cannot be compared so."""
    return cursor > last if order == "text" else _number(cursor) > _number(last)


def _number(cursor: str) -> Decimal:
    """Return a cursor as the number that it is, to its last digit. Raises ValueError if it is none."""
    try:
        number = Decimal(cursor)
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite():
        raise ValueError(f"{cursor!r} is no number")
    return number


_declared = cast("NodeType[..., Any]", NodeDecorator(INBOX)(_inbox))
_declared.check = check_schema
inbox = Inbox(_declared)
