"""Whether what a test gives to a rehearsal is of the right kind; if not, what to do instead."""

from __future__ import annotations

from perdure.graph.asking import Ask
from perdure.graph.declare import NodeType, Workflow
from perdure.graph.inbox import Inbox
from perdure.graph.model import BUILT_IN


def require_workflow(given: object, by: str) -> None:
    """Raise TypeError unless a workflow is given; `by` is what takes it."""
    if isinstance(given, Workflow):
        return
    if isinstance(given, NodeType):
        raise TypeError(
            f"{by} takes a workflow, and {given.label!r} is a node: call it in a function with @workflow and run that, or call "
            f"{given.label}(…) by itself, which is its plain function."
        )
    raise TypeError(
        f"{by} takes a workflow, and {given!r} is none: put @workflow on the function that calls the nodes."
    )


def require_node_type(given: object) -> None:
    """Raise TypeError unless something is given whose body a stub can stand in for."""
    if isinstance(given, NodeType):
        return
    if isinstance(given, Workflow):
        called = ", ".join(node_type.label for name, node_type in given.types.items() if name not in BUILT_IN)
        raise TypeError(
            f"perdure.stub takes a node, and {given.name!r} is a workflow, which has no body: stub the nodes that it calls "
            f"({called or 'it has none'})."
        )
    if isinstance(given, Ask):
        raise TypeError(
            "perdure.stub takes a node with a body, and `ask` has none: say perdure.answer(question, value)."
        )
    if isinstance(given, Inbox):
        raise TypeError("perdure.stub takes a node with a body, and `inbox` has none: say perdure.send(name, item).")
    raise TypeError(f"perdure.stub takes a node, and {given!r} is none: put @node on the function.")
