"""Laying edges: how a value that mentions outputs of nodes becomes edges, constants and templates.

Tracing and the short form both go through here, so that the same workflow gets the same edges with the same ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from perdure.graph.constants import is_array, is_object
from perdure.graph.model import DEFAULT_OUTPUT, OUTPUT, Edge, EdgeMode, Node, PathStep
from perdure.graph.templates import MAP, REF, TEXT, literal
from perdure.ids import NodeId


class Origin(msgspec.Struct, frozen=True):
    """Where a value comes from: a handle of a node, or a part of what is on it."""

    node: NodeId
    handle: str = DEFAULT_OUTPUT
    path: tuple[PathStep, ...] = ()
    mode: EdgeMode | None = None


class Text(msgspec.Struct, frozen=True):
    """A text with values in it."""

    parts: tuple[str | Origin, ...]


class Alternatives(msgspec.Struct, frozen=True):
    """The first of several values that is not skipped."""

    origins: tuple[Origin, ...]


class EdgeIds:
    """Gives each edge its id: where it goes from and to, with a number from the second one on."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}

    def take(self, source: str, source_handle: str, target: str, target_handle: str) -> str:
        """Return an id that no other edge has."""
        base = f"{source}.{source_handle}>{target}.{target_handle}"
        number = self._last.get(base, 0) + 1
        edge_id = base if number == 1 else f"{base}#{number}"
        while edge_id in self._taken:
            number += 1
            edge_id = f"{base}#{number}"
        self._last[base] = number
        self._taken.add(edge_id)
        return edge_id


class Wiring:
    """The edges of a graph while it is written."""

    def __init__(self) -> None:
        self.edges: list[Edge] = []
        self._ids = EdgeIds()

    def connect(self, origin: Origin, target: NodeId, handle: str, mode: EdgeMode | None = None) -> str:
        """Lay one edge and return its id."""
        edge = Edge(
            id=self._ids.take(origin.node, origin.handle, target, handle),
            source=origin.node,
            source_handle=origin.handle,
            target=target,
            target_handle=handle,
            mode=mode or origin.mode,
            path=origin.path,
        )
        self.edges.append(edge)
        return edge.id

    def feed(self, target: NodeId, handle: str, value: Any, mode: EdgeMode | None = None) -> Any:
        """Lay the edges that `value` needs; return what goes into the target's data, UNSET if edges say it all.

        `value` is JSON with `Origin`, `Text` and `Alternatives` in it. `mode` is for a value that is one origin.
        """
        if isinstance(value, Origin):
            self.connect(value, target, handle, mode)
            return msgspec.UNSET
        if isinstance(value, Alternatives):
            for origin in value.origins:
                self.connect(origin, target, handle, "first")
            return msgspec.UNSET
        if mode == "map":
            return {MAP: self._template(target, handle, value)}
        if is_array(value) and (origins := _only_origins(value)):
            for origin in origins:
                self.connect(origin, target, handle)
            return msgspec.UNSET
        return self._template(target, handle, value)

    def _template(self, target: NodeId, handle: str, value: Any) -> Any:
        if not _mentions_origins(value):
            return literal(value)
        if isinstance(value, Origin):
            return {REF: self.connect(value, target, handle)}
        if isinstance(value, Text):
            parts = (part if isinstance(part, str) else self._template(target, handle, part) for part in value.parts)
            return {TEXT: list(parts)}
        if is_object(value):
            return {key: self._template(target, handle, member) for key, member in value.items()}
        return [self._template(target, handle, member) for member in value]


def sort_edges(nodes: Sequence[Node], edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """Return the edges by target, in the order of the nodes, then by handle. Those of one handle keep their order."""
    position: dict[str, int] = {}
    for index, node in enumerate(nodes):
        position.setdefault(node.id, index)
    position.setdefault(OUTPUT, len(nodes))
    nowhere = len(nodes) + 1
    return tuple(sorted(edges, key=lambda edge: (position.get(edge.target, nowhere), edge.target, edge.target_handle)))


def _only_origins(value: list[Any]) -> list[Origin]:
    """Return the members if there are several and all are origins. A list of one needs a template to stay a list."""
    origins = [member for member in value if isinstance(member, Origin)]
    return origins if len(origins) == len(value) > 1 else []


def _mentions_origins(value: Any) -> bool:
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, Origin | Text):
            return True
        if is_object(part):
            pending.extend(part.values())
        elif is_array(part):
            pending.extend(part)
    return False
