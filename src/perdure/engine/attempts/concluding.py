"""What a node has given, as it is recorded: encoded, with what decisions about other nodes need to know of it.

A body gives it, or where nobody knows what became of a body, a probe or a person says what it would have given. Conditions
downstream must not tell the difference, so all of them come through here while the value still is a Python object: whether
it is true is judged by Python, and the parts that decisions look at are kept at hand where the value itself goes to a blob.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from perdure.dispatch.base import Judged
from perdure.engine.attempts.values import Values
from perdure.engine.attempts.weight import is_light
from perdure.graph.handles import Outputs
from perdure.graph.model import DEFAULT_OUTPUT, Edge
from perdure.graph.plan import Plan
from perdure.ids import NodeId
from perdure.journal.events import Encoded
from perdure.journal.truth import Look, by_handle, truths_of
from perdure.journal.values import FALSE, TRUE, part_handle, part_of, parts_or_nulls
from perdure.store.codecs import NewBlob
from perdure.store.codecs.wire import Packed, whole_reference
from perdure.store.transitions import BlobUse


class Concluded(msgspec.Struct, frozen=True, gc=False):
    """What a node has given: its outputs, with what decisions need to know of them, and blobs to be kept."""

    outputs: dict[str, Encoded]
    blobs: tuple[NewBlob, ...]
    are_kept: bool = False
    """Whether the blobs are durable already."""


class Pack(Protocol):
    """Encodes a value: `Values.packed`, or `Keeping.packed`."""

    def __call__(self, value: Any, *, where: str) -> Packed: ...


def conclude(result: Any, node_id: NodeId, plan: Plan, pack: Pack) -> Concluded:
    """Encode what the node has given, and note what decisions need to know of it. In any thread.

    Raises ValueNotStorable, and TruthUnclear where a condition looks at what is neither true nor false.
    """
    if isinstance(result, Judged):
        named, truths = by_handle(result.result), result.truths
    else:
        named = by_handle(result)
        truths = truths_of(named, looks, node_id) if (looks := looks_at(node_id, plan)) else {}
    outputs: dict[str, Encoded] = {}
    blobs: tuple[NewBlob, ...] = ()
    for name, value in named.items():
        packed = pack(value, where=f"node {node_id!r}, handle {name!r}")
        outputs[name] = msgspec.Raw(packed.raw)
        blobs += packed.blobs
    if picked := plan.nodes[node_id].picked:
        outputs |= _parts_of_large(outputs, blobs, [edge for edge in picked if not edge.collects_parts])
        lists = _parts_of_large(outputs, blobs, [edge for edge in picked if edge.collects_parts])
        for name, parts in lists.items():  # as many as a stream had items
            packed = pack(parts, where=f"parts of what node {node_id!r} gave")
            outputs[name] = msgspec.Raw(packed.raw)
            blobs += packed.blobs
    for name, truth in truths.items():
        outputs[name] = TRUE if truth else FALSE
    return Concluded(outputs, blobs)


def conclude_plainly(result: Any, node_id: NodeId, plan: Plan, values: Values) -> dict[str, Encoded] | None:
    """As `conclude`, at once, for a small plain value at which nobody looks: what most nodes give. None for any other."""
    if plan.nodes[node_id].picked or looks_at(node_id, plan):
        return None
    raw = values.codecs.encode_plain(result)
    return None if raw is None or len(raw) > values.inline_max_bytes else {DEFAULT_OUTPUT: msgspec.Raw(raw)}


async def conclude_for(
    result: Any, node_id: NodeId, plan: Plan, values: Values
) -> tuple[dict[str, Encoded], tuple[BlobUse, ...]]:
    """As `conclude`, without holding up the loop; the blobs are durable when this returns."""
    if is_light_result(result):
        concluded = conclude(result, node_id, plan, values.packed)
    else:
        beside = functools.partial(conclude, node_id=node_id, plan=plan, pack=values.packed)
        concluded = await values.beside(beside, result)
    return concluded.outputs, await values.keep(concluded.blobs)


def looks_at(node_id: NodeId, plan: Plan) -> tuple[Look, ...]:
    """Return what conditions of other nodes look at in what this one gives."""
    looks: list[Look] = []
    for dependent in plan.nodes[node_id].downstream:
        if conditions := plan.nodes[dependent].conditions:
            looks += [(edge.source_handle, edge.path) for edge in conditions if edge.source == node_id]
    return tuple(looks)


def is_light_result(result: Any) -> bool:
    """Whether encoding what a body returned takes no longer than a moment."""
    if isinstance(result, Judged):
        result = result.result
    return all(map(is_light, result.handles().values())) if isinstance(result, Outputs) else is_light(result)


def _parts_of_large(
    outputs: Mapping[str, Encoded], blobs: Sequence[NewBlob], picked: Sequence[Edge]
) -> dict[str, Encoded]:
    """Keep at hand what decisions look at inside values that are too large to be kept with the run."""
    held = {blob.digest: blob.content for blob in blobs}
    parts: dict[str, Encoded] = {}
    for edge in picked:
        value = outputs.get(edge.source_handle)
        if value is None or (reference := whole_reference(value)) is None:
            continue
        with suppress(LookupError):  # a part that is not there is not there for the condition either
            whole = msgspec.Raw(held[reference.digest])
            part = parts_or_nulls(whole, edge.path) if edge.collects_parts else part_of(whole, edge.path)
            parts[part_handle(edge.source_handle, edge.path)] = part
    return parts
