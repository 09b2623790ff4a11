"""Workflows that start runs of others: `report.start_each(schedule("0 7 * * *"), who="Ada")`.

The call adds a node whose handles are the inputs of the workflow that it starts. So what it is given is checked like what any
other node is given, as far as that workflow is known where the graph is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import GraphError, InvalidCall, MisusedRef
from perdure.graph.calls import bind_arguments
from perdure.graph.handles import Handle, Stream
from perdure.graph.model import START, Graph
from perdure.graph.refs import place_of_call
from perdure.graph.registry import declared_types
from perdure.graph.trace import current_trace

if TYPE_CHECKING:
    from perdure.graph.declare import NodeType
    from perdure.graph.workflows import Workflow

NAME = "workflow"
"""The handle of a node that starts runs, on which stands the name of the workflow. All its others are that workflow's inputs."""


class Starts:
    """A workflow that is started by nodes of others, and how those nodes are called."""

    def __init__(self, workflow: Workflow[..., Any], node_id: str | None = None) -> None:
        self._workflow = workflow
        self._node_id = node_id

    def start_each(
        self, items: Stream[Any] | Iterable[Any], /, *, into: str | None = None, **inputs: Any
    ) -> Stream[str]:
        """Start a run for each item, and give the ids of the runs: see `Workflow.start_each`."""
        trace = current_trace()
        subject = f"Workflow {self._workflow.name!r}"
        if trace is None:
            raise MisusedRef(
                f"{self._workflow.name}.start_each only means something inside a @workflow function ({place_of_call()})."
            )
        handles = self._workflow.input_handles
        target = _target(handles, inputs) if into is None else into
        if isinstance(target, list):
            raise InvalidCall(subject, target, place_of_call())
        if into in inputs:
            raise InvalidCall(subject, [f"{into!r} is given twice."], place_of_call())
        arguments = bind_arguments(subject, handles, (), {target: items, **inputs})
        node_type = self._node_type()
        started = trace.call(node_type, {NAME: self._workflow.name, **arguments}, mapped=[target])
        return cast("Stream[str]", started)

    def _node_type(self) -> NodeType[..., Any]:
        name = self._workflow.name
        try:
            node_type = declared_types()[START].of({NAME: name})
        except LookupError as error:
            raise GraphError(f"A node {error.args[0]} ({place_of_call()}).") from None
        if not self._workflow.is_the_last:
            raise GraphError(
                f"There are two workflows called {name!r}, and runs are started by name ({place_of_call()}). "
                "Give one of them another: @workflow(name=…)."
            )
        return node_type if self._node_id is None else node_type.named(self._node_id)


def started_by(graph: Graph) -> list[str]:
    """Return the names of the workflows of which a graph starts runs."""
    named = (node.data.get(NAME) for node in graph.nodes if node.type == START)
    return sorted({name for name in named if isinstance(name, str)})


def handles_of(workflow: Workflow[..., Any]) -> tuple[Handle, ...]:
    """Return the handles of a node that starts runs of a workflow. Raises LookupError if it cannot have them."""
    if NAME in workflow.input_types:
        raise LookupError(
            f"starts workflow {workflow.name!r}, which has an input called {NAME!r}: that is where the node says which "
            "workflow it starts, and the input needs another name"
        )
    required = {handle.name for handle in workflow.input_handles if handle.required}
    return (
        Handle(name=NAME, annotation=str),
        *(
            Handle(name=name, annotation=annotation, required=name in required, keyword_only=True)
            for name, annotation in workflow.input_types.items()
        ),
    )


def _target(handles: Sequence[Handle], given: Iterable[str]) -> str | list[str]:
    """Return the input for the items, if there is only one that needs something; else what is wrong."""
    open_inputs = [handle.name for handle in handles if handle.required and handle.name not in set(given)]
    if len(open_inputs) == 1:
        return open_inputs[0]
    return list(_unclear(handles, open_inputs))


def _unclear(handles: Sequence[Handle], open_inputs: Sequence[str]) -> Iterator[str]:
    if not handles:
        yield "it has no inputs, and so none for the items."
    elif open_inputs:
        listed = ", ".join(map(repr, open_inputs))
        yield f"it is not clear which of {listed} gets the items: say it with into=…, and give the others."
    else:
        yield "none of its inputs needs a value: say which one gets the items, with into=…."
