"""What a body gave at once, packed into an entry of its node's stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.engine.attempts.values import Values
from perdure.engine.streams.entries import Entry
from perdure.graph.handles import Outputs
from perdure.graph.model import CONDITION, DEFAULT_OUTPUT, Edge
from perdure.graph.plan import NodePlan, Plan
from perdure.ids import NodeId
from perdure.journal.events import Encoded
from perdure.journal.truth import Look, by_handle, truths_of
from perdure.journal.values import FALSE, TRUE, part_handle, part_or_null
from perdure.store.codecs import NewBlob
from perdure.store.codecs.wire import whole_reference


class PackedEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry, and the blobs to which it refers."""

    entry: Entry
    blobs: tuple[NewBlob, ...] = ()
    are_kept: bool = False
    """Whether the blobs are durable already."""


def pack_entry(
    value: Any, node_id: NodeId, values: Values, looks: Sequence[Look] = (), collected: Sequence[Edge] = ()
) -> PackedEntry:
    """Encode a value, or Outputs, in any thread, and note what conditions that look at it need to know.

    Of what goes to a blob, the parts that are `collected` are kept beside it.

    Raises ValueNotStorable, and TruthUnclear where a condition looks at what is neither true nor false.
    """
    truths = truths_of(by_handle(value), looks, node_id) if looks else {}
    is_named = isinstance(value, Outputs)
    if not is_named and not truths and not collected:
        packed = values.packed(value, where=f"node {node_id!r}")
        return PackedEntry(packed.raw, packed.blobs)
    given: dict[str, msgspec.Raw] = {}
    blobs: tuple[NewBlob, ...] = ()
    for handle, part in by_handle(value).items():
        packed = values.packed(part, where=f"node {node_id!r}, handle {handle!r}")
        given[handle] = msgspec.Raw(packed.raw)
        blobs += packed.blobs
    for name, truth in truths.items():
        given[name] = TRUE if truth else FALSE
    for edge, part in _collected_of_large(given, blobs, collected):
        packed = values.packed(part, where=f"a part of what node {node_id!r} gave")
        given[part_handle(edge.source_handle, edge.path)] = msgspec.Raw(packed.raw)
        blobs += packed.blobs
    if len(given) == 1 and not is_named:
        return PackedEntry(bytes(given[DEFAULT_OUTPUT]), blobs)
    return PackedEntry([given], blobs)


def collected_parts(plan: NodePlan) -> tuple[Edge, ...]:
    """Return the edges by which the run's outputs hold a part of each item that the node gives."""
    return tuple(edge for edge in plan.picked if edge.collects_parts)


def streamed_looks(node_id: NodeId, plan: Plan) -> tuple[Look, ...]:
    """Return what conditions look at in each item that the node gives."""
    return tuple(
        (edge.source_handle, edge.path)
        for reader in plan.nodes[node_id].readers
        if (flow := plan.nodes[reader].flow) is not None
        for edge in flow.live
        if edge.source == node_id and edge.target_handle == CONDITION
    )


def _collected_of_large(
    given: Mapping[str, Encoded], blobs: Sequence[NewBlob], collected: Sequence[Edge]
) -> list[tuple[Edge, Encoded]]:
    """Return the parts that are collected of what is too large to be kept with the entry."""
    held = {blob.digest: blob.content for blob in blobs}
    parts: list[tuple[Edge, Encoded]] = []
    for edge in collected:
        value = given.get(edge.source_handle)
        if value is not None and (reference := whole_reference(value)) is not None:
            parts.append((edge, part_or_null(msgspec.Raw(held[reference.digest]), edge.path)))
    return parts
