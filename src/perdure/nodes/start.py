"""The node that starts runs of a workflow: `report.start_each(ticks)`, or in a document a node of type `perdure.start`.

Which handles it has, the workflow says that it names. It has no body: the engine starts runs for it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from perdure.errors import GraphError
from perdure.graph.declare import NodeType, Policy
from perdure.graph.handles import shape_of
from perdure.graph.model import START
from perdure.graph.registry import add_type
from perdure.graph.starts import NAME, handles_of
from perdure.graph.workflows import Workflow, declared_workflows

AT_ONCE = 16
"""How many runs are started at once: their first transitions go into one commit."""


async def start(workflow: str, **inputs: Any) -> str:
    """What stands for a node that starts runs. In a run the engine starts them; by itself it cannot."""
    raise GraphError(f"Only a run can start runs of workflow {workflow!r}: start it with engine.start.")


class StartType(NodeType[..., Any]):
    """The type of all nodes that start runs, or of those that start runs of one workflow."""

    def __init__(self) -> None:
        super().__init__(start, name=START, policy=Policy(concurrency=AT_ONCE), shape=shape_of(start))
        self._workflow: Workflow[..., Any] | None = None

    @property
    def label(self) -> str:
        return super().label if self._workflow is None else self._workflow.name

    def of(self, data: Mapping[str, Any]) -> NodeType[..., Any]:
        """Return the type with the handles of the workflow that is named. Raises LookupError if it is not known here."""
        name = data.get(NAME)
        if not isinstance(name, str):
            raise LookupError(f"does not name the workflow that it starts, as a text: {NAME!r}")
        if (workflow := declared_workflows().get(name)) is None:
            raise LookupError(f"starts workflow {name!r}, which is not declared here")
        chosen = copy.copy(self)
        chosen._workflow = workflow
        chosen.inputs = handles_of(workflow)
        chosen.open_inputs = False
        return chosen


add_type(StartType())
