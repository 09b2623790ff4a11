"""What was written is not a workflow, or nothing that can run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.errors.base import PerdureError, listed


class GraphError(PerdureError):
    """What was written is not a workflow."""

    code = "graph_error"


class InvalidDeclaration(GraphError):
    """`@node` or `@workflow` got something that it cannot use."""

    code = "invalid_declaration"

    def __init__(self, subject: str, problems: Sequence[str]) -> None:
        super().__init__(f"{subject} cannot be declared:{listed(problems)}")
        self.subject = subject
        self.problems = tuple(problems)


class InvalidCall(GraphError, TypeError):
    """A node was called with arguments that it does not take."""

    code = "invalid_call"

    def __init__(self, subject: str, problems: Sequence[str], place: str) -> None:
        super().__init__(f"{subject} cannot be called like this ({place}):{listed(problems)}")
        self.subject = subject
        self.problems = tuple(problems)
        self.place = place


class MisusedRef(GraphError, TypeError):
    """A value that exists only in a run was used as if it were there while the workflow is traced."""

    code = "misused_ref"


class WorkflowRaised(GraphError):
    """The function of a workflow raised an error of its own while it was traced. That error is the cause of this one."""

    code = "workflow_raised"

    def __init__(self, workflow: str, error: BaseException, place: str, line: str) -> None:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        shown = f":\n    {line}\n" if line else ". "
        super().__init__(
            f"The function of workflow {workflow!r} raised {said.rstrip('.')} ({place}){shown}"
            "It runs once, to describe the graph, with stand-ins for values. Correct it, or do this inside a node."
        )
        self.workflow = workflow
        self.place = place


class DocumentFault(NamedTuple):
    """What is wrong in a document, and where: a line and column, or the path to the value."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class UnreadableGraph(GraphError):
    """A document is not a graph. All that is wrong with its shape is listed."""

    code = "unreadable_graph"

    def __init__(self, faults: Sequence[DocumentFault]) -> None:
        super().__init__(f"This is not a graph:{listed([str(fault) for fault in faults])}")
        self.faults = tuple(faults)


class NotExpressible(GraphError):
    """A graph uses what the short form has no words for."""

    code = "not_expressible"

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"The short form cannot say this:{listed(problems, 'Write it as nodes and edges.')}")
        self.problems = tuple(problems)


class Fault(NamedTuple):
    """What is wrong with a graph: at which node (none: the whole graph), by which rule, and what to do about it."""

    node: str | None
    rule: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"[{self.rule}] {self.message} {self.remedy}"


class InvalidGraph(GraphError):
    """A graph has faults. All of them are in `faults`; the message lists the first ones."""

    code = "invalid_graph"

    def __init__(self, name: str, faults: Sequence[Fault]) -> None:
        noun = "fault" if len(faults) == 1 else "faults"
        super().__init__(f"Workflow {name!r} has {len(faults)} {noun}:{listed([str(fault) for fault in faults])}")
        self.name = name
        self.faults = tuple(faults)


class ProgramError(PerdureError):
    """A file or module that was named cannot be loaded, or holds nothing that can run."""

    code = "program_error"
