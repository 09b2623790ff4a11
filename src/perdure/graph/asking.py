"""A node that asks a person: `ok = ask("Publish this?", schema=bool, show=parts)`.

It waits between nodes. No body is in memory meanwhile, and none runs again when the answer comes: that is what makes it better
than `ctx.ask` wherever a question stands by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

from perdure.graph.declare import NodeDecorator, NodeType
from perdure.graph.handles import BodyContext
from perdure.graph.model import ASK
from perdure.graph.questions import NOT_GIVEN, Span, answers, limit
from perdure.graph.schemas import problems_of_schema

T = TypeVar("T")


async def _ask(
    ctx: BodyContext,
    prompt: str,
    show: Any = None,
    schema: dict[str, Any] | None = None,
    choices: list[Any] | None = None,
    deadline: float | None = None,
    default: list[Any] | None = None,
) -> Any:
    """Ask once per item, where the node is mapped. By itself it has no body, and the engine asks for it."""
    context: Any = ctx
    return await context.asked(prompt, schema, choices, deadline, default, show)


class Ask:
    """What `ask` is: called inside a workflow, it adds a node that asks."""

    def __init__(self, node_type: NodeType[..., Any]) -> None:
        self.node_type = node_type

    @overload
    def __call__(self, prompt: str, *, show: Any = ..., deadline: Span | None = ..., default: str = ...) -> str: ...

    @overload
    def __call__(
        self,
        prompt: str,
        *,
        schema: type[T],
        choices: Sequence[T] | None = ...,
        show: Any = ...,
        deadline: Span | None = ...,
        default: T = ...,
    ) -> T: ...

    @overload
    def __call__(
        self,
        prompt: str,
        *,
        choices: Sequence[T],
        show: Any = ...,
        deadline: Span | None = ...,
        default: T = ...,
    ) -> T: ...

    @overload
    def __call__(
        self,
        prompt: str,
        *,
        schema: Any,
        choices: Sequence[Any] | None = ...,
        show: Any = ...,
        deadline: Span | None = ...,
        default: Any = ...,
    ) -> Any: ...

    def __call__(
        self,
        prompt: str,
        *,
        schema: Any = None,
        choices: Sequence[Any] | None = None,
        show: Any = None,
        deadline: Span | None = None,
        default: Any = NOT_GIVEN,
    ) -> Any:
        """Ask a person, and give the answer: a text, or what `schema` says, or one of the `choices`. However long it takes.

        After the `deadline`, counted from when it is asked, the answer is the `default`; without one, the node fails.
        """
        fitting = answers(schema, choices, default, deadline)
        arguments: dict[str, Any] = {"prompt": prompt, "schema": fitting.schema}
        if fitting.choices:
            arguments["choices"] = list(fitting.choices)
        if show is not None:
            arguments["show"] = show
        if deadline is not None:
            arguments["deadline"] = limit(deadline, "the deadline").seconds
        if fitting.default is not NOT_GIVEN:
            arguments["default"] = [fitting.default]
        return self.node_type(**arguments)

    def named(self, node_id: str) -> Ask:
        """Return this for a call that chooses the id of its node: `ask.named("approval")("Publish this?", schema=bool)`."""
        return self._with(self.node_type.named(node_id))

    def options(self, *, stage: str) -> Ask:
        """Return this for a call whose node belongs to a stage."""
        return self._with(self.node_type.options(stage=stage))

    def _with(self, node_type: NodeType[..., Any]) -> Ask:
        chosen = copy.copy(self)
        chosen.node_type = node_type
        return chosen


def _problems(constants: Mapping[str, Any], fed: Collection[str]) -> Iterator[str]:
    """Yield why something cannot be asked, where that is written in a graph: `__call__` does not let it come to that."""
    yield from problems_of_schema(constants.get("schema"))
    choices, default, deadline = (constants.get(name) for name in ("choices", "default", "deadline"))
    if choices is not None and not choices:
        yield "A question with choices needs at least one."
    if default is not None and len(default) != 1:
        yield "The default answer is written as a list of one, because null may be one."
    elif default and choices and default[0] not in choices:
        yield f"The default {default[0]!r} is none of the choices."
    if default and deadline is None and "deadline" not in fed:
        yield "A default answer needs a deadline, after which it is taken."
    try:
        limit(deadline, "The deadline")
    except ValueError as error:
        yield f"{error}."


_ask.__name__ = "ask"
ask = Ask(NodeDecorator(ASK)(_ask))
ask.node_type.check = _problems
