"""What a workflow is: nodes joined by edges between handles. Immutable, pure data.

A graph is the same object whether it was traced from Python, read from JSON or YAML, or written in the short form;
`forms` reads and writes those, `validate` finds what is wrong with one, `plan` prepares one for running.

**How a value reaches a handle.** A parameter of a node is fed in one of four ways:

- nothing: the parameter's default;
- a constant in `Node.data`;
- edges: one gives its value, several give a list in edge order (the parameter must be a list; a list of one is a
  template), several with mode `first` give the value of the first of them that was not skipped;
- a template in `Node.data`: a constant that holds `{"$ref": EDGE_ID}` somewhere inside, or `{"$text": [part, …]}` to
  join texts. The edges it names fill the places. `templates` says all that a template can hold.

The workflow's own outputs are fed the same way: by edges to `$output`, with their constants and templates in
`Graph.outputs`.

**Order of edges** matters only among those that feed one handle. Readers and tracing sort edges by target node and
handle, so that equal graphs are equal objects.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from perdure.ids import NodeId

INPUT = NodeId("$input")
"""The source of edges that carry the run's inputs; the handle is the input's name."""
OUTPUT = NodeId("$output")
"""The target of edges that carry the run's outputs; the handle is the output's name."""
CONDITION = "$when"
"""The handle on which conditions arrive (modes `when` and `unless`)."""
ORDER = "$after"
"""The handle of edges that carry no value: the target only waits for the source, and is skipped with it."""
STREAM_INPUT = "perdure.input"
"""The type of a node that stands for an input that is a stream. The node's id is the input's name."""
ASK = "perdure.ask"
"""The type of a node that asks a person."""
INBOX = "perdure.inbox"
"""The type of a trigger that is fed by whoever has something for it."""
FED = frozenset((STREAM_INPUT, INBOX))
"""Types of nodes whose items are sent to the run."""
SCHEDULE = "perdure.schedule"
FOLDER = "perdure.folder"
REDIS_STREAM = "perdure.redis_stream"
"""The types of triggers that look outside by themselves."""
START = "perdure.start"
"""The type of a node that starts runs of another workflow."""
BUILT_IN = frozenset((STREAM_INPUT, ASK, INBOX, SCHEDULE, FOLDER, REDIS_STREAM, START))
"""Types that are there wherever perdure is."""
DEFAULT_OUTPUT = "output"
"""The handle of a node that returns one value, and of a workflow that returns one."""

JoinMode = Literal["zip", "latest"]
Leftovers = Literal["fail", "drop"]
EdgeMode = Literal["map", "collect", "stream", "first", "when", "unless"]
PathStep = str | int


class Input(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A named, typed input of the workflow. `schema` is a JSON Schema; a missing default makes it required."""

    name: str
    schema: dict[str, Any] = {}
    default: Any = msgspec.UNSET


class Node(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A vertex: which node type it runs, and the constants and templates for its handles."""

    id: NodeId
    type: str
    data: dict[str, Any] = {}
    stage: str | None = None
    join: JoinMode | None = None
    """How streams that are mapped together meet, when they do not come from one source."""
    leftovers: Leftovers = "fail"
    """What becomes of the items that are left when the shortest of zipped streams has ended."""
    extra: dict[str, Any] = {}
    """Keys that are not ours, such as a drawing's `position`: kept as they came, and no part of the content hash."""


class Edge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Carries what `source` puts on `source_handle` to `target_handle` of `target`.

    `path` picks a part of the value (`title`, `0`), of a stream a part of each item. `mode` says how the value meets the
    parameter; none is one value.
    """

    id: str
    source: NodeId
    target: NodeId
    target_handle: str
    source_handle: str = DEFAULT_OUTPUT
    mode: EdgeMode | None = None
    path: tuple[PathStep, ...] = ()
    extra: dict[str, Any] = {}

    @property
    def collects_parts(self) -> bool:
        """Whether it carries the list of a part of each item."""
        return self.mode == "collect" and bool(self.path)


class Graph(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A workflow as data."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    inputs: tuple[Input, ...] = ()
    outputs: dict[str, Any] = {}
    """The constants and templates among the workflow's outputs, as `Node.data` is for a node."""
    extra: dict[str, Any] = {}
