"""Which outputs are streams, and which streams go together item by item.

Two streams are aligned if their items stand for the same items of one source: then the third of one belongs to the
third of the other. Each stream has a *lineage* that says which source that is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from perdure.errors import Fault
from perdure.graph.index import Index
from perdure.graph.model import INPUT, Edge
from perdure.graph.templates import is_mapped

Lineage = Hashable
UNKNOWN: Lineage = "unknown"
"""The lineage of what comes from a node whose type is not known, or that cannot run: it may be a stream or a value."""


class Streams:
    """The lineage of every output of a graph."""

    def __init__(self, index: Index, order: Sequence[int]) -> None:
        self._index = index
        # By node: None for values, a lineage for all its outputs, or True if each output has one of its own.
        self._emitted: list[Lineage | None] = [UNKNOWN] * len(index.nodes)
        self._lineages: list[tuple[Lineage, ...]] = [()] * len(index.nodes)
        for position in order:
            self._emitted[position] = self._emission(position)

    def lineage_of(self, edge: Edge) -> Lineage | None:
        """Return the lineage of what an edge carries; None if that is one value."""
        if edge.source == INPUT:
            return None
        source = self._index.position.get(edge.source)
        if source is None:
            return UNKNOWN
        emitted = self._emitted[source]
        return (source, edge.source_handle) if emitted is True else emitted

    def faults(self) -> Iterator[Fault]:
        """Yield the nodes that map streams together which are not aligned."""
        for position, lineages in enumerate(self._lineages):
            node = self._index.nodes[position]
            if len(set(lineages)) > 1 and node.join is None and UNKNOWN not in lineages:
                yield Fault(
                    node.id,
                    "unaligned_join",
                    f"Node {node.id!r} maps over streams that do not come from one source item by item.",
                    "Say how they meet: f.map(xs, ys, join='zip') or join='latest'.",
                )

    def _emission(self, position: int) -> Lineage | None:
        kind = self._index.kinds[position]
        lineages = self._lineages[position] = tuple(self._mapped_lineages(position))
        if kind is not None and kind.is_generator:
            return True
        if lineages:
            return lineages[0] if len(set(lineages)) == 1 else (position,)
        return None if kind is not None else UNKNOWN

    def _mapped_lineages(self, position: int) -> Iterator[Lineage]:
        for edges in self._index.incoming[position].values():
            for edge in edges:
                if edge.mode == "map":
                    lineage = self.lineage_of(edge)
                    # A list is a source of its own: mapped twice, it gives streams that are aligned.
                    yield (edge.source, edge.source_handle, edge.path) if lineage is None else lineage
        for handle, value in self._index.nodes[position].data.items():
            if is_mapped(value):
                yield (position, "constant", handle)
