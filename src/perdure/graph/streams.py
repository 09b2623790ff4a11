"""Which outputs are streams, and which streams go together item by item.

Two streams are aligned if their items stand for the same items of one source: then the third of one belongs to the
third of the other. Each stream has a *lineage* that says which source that is. What comes out of a node that does not keep the
order of its items stands for nothing but itself.
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
        self._order = order
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
        """Yield what is wrong with the way in which streams are used."""
        yield from self._unaligned()
        yield from self._repeated()

    def _unaligned(self) -> Iterator[Fault]:
        """Yield the nodes that map streams together which are not aligned, or say so of what they do not zip."""
        for position, lineages in enumerate(self._lineages):
            node = self._index.nodes[position]
            if len(set(lineages)) > 1 and node.join is None and UNKNOWN not in lineages:
                yield Fault(
                    node.id,
                    "unaligned_join",
                    f"Node {node.id!r} maps over streams that do not come from one source item by item{self._why(lineages)}.",
                    "Say how they meet: f.map(xs, ys, join='zip') or join='latest'.",
                )

            if node.leftovers != "fail" and node.join != "zip":
                message = f"Node {node.id!r} drops what is left of longer streams, but does not zip them."
                yield Fault(node.id, "unaligned_join", message, "Give it the join 'zip', or leave out its leftovers.")

    def _why(self, lineages: Sequence[Lineage]) -> str:
        """Return what explains it where it surprises: outputs of one generator look as if they belonged together."""
        handles: dict[int, dict[str, None]] = {}
        for lineage in lineages:
            match lineage:
                case (int(source), str(handle)):
                    handles.setdefault(source, {})[handle] = None
                case _:
                    pass
        for source, names in handles.items():
            if len(names) > 1:
                together = " and ".join(map(repr, names))
                generator = self._index.nodes[source].id
                return f": {together} of {generator!r} are streams of their own, because a generator may leave one of them out"
        return ""

    def _repeated(self) -> Iterator[Fault]:
        """Yield the nodes that must run at most once, but would begin again with the stream that they read."""
        fickle: dict[int, str] = {}  # what reads a stream that may begin again, and whose it is
        for position in self._order:
            node, kind = self._index.nodes[position], self._index.kinds[position]
            origins = (self._fickle_source(edge, fickle) for edge in self._live_edges(position))
            producer = next((origin for origin in origins if origin is not None), None)
            if producer is not None:
                fickle[position] = producer
            if kind is None or not kind.policy.once:
                continue
            if self._lineages[position]:
                message = (
                    f"Node {node.id!r} is called once per item, but its type says once=True, which is for whole nodes."
                )
                remedy = "Pass it the whole list or stream, or leave once out and use ctx.idempotency_key, which each item has."
                yield Fault(node.id, "unsafe_replay", message, remedy)
            elif producer is not None:
                message = (
                    f"Node {node.id!r} must run at most once, but reads a stream of {producer!r} that may begin again."
                )
                yield Fault(
                    node.id, "unsafe_replay", message, f"Declare {producer!r} with replay='hold' or 'checkpoint'."
                )

    def _live_edges(self, position: int) -> Iterator[Edge]:
        for edges in self._index.incoming[position].values():
            for edge in edges:
                if edge.mode not in (None, "collect", "first") and self.lineage_of(edge) not in (None, UNKNOWN):
                    yield edge

    def _fickle_source(self, edge: Edge, fickle: dict[int, str]) -> str | None:
        source = self._index.position[edge.source]
        kind = self._index.kinds[source]
        if kind is not None and kind.is_generator and not self._lineages[source] and kind.policy.replay == "compare":
            return edge.source
        return fickle.get(source)

    def _emission(self, position: int) -> Lineage | None:
        kind = self._index.kinds[position]
        lineages = self._lineages[position] = tuple(self._mapped_lineages(position))
        if kind is not None and kind.is_generator:
            return True
        if lineages:
            is_in_step = len(set(lineages)) == 1 and (kind is None or kind.policy.ordered)
            return lineages[0] if is_in_step else (position,)
        return None if kind is not None else UNKNOWN

    def _mapped_lineages(self, position: int) -> Iterator[Lineage]:
        for edges in self._index.incoming[position].values():
            for edge in edges:
                lineage = self.lineage_of(edge)
                if edge.mode == "map":
                    # A list is a source of its own: mapped twice, it gives streams that are aligned.
                    yield (edge.source, edge.source_handle, edge.path) if lineage is None else lineage
                elif edge.mode in ("when", "unless") and lineage not in (None, UNKNOWN):
                    yield lineage  # it decides item by item
        for handle, value in self._index.nodes[position].data.items():
            if is_mapped(value):
                yield (position, "constant", handle)
