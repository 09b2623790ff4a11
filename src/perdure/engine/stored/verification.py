"""Proving that a run is whole, given all that is stored about it, wherever that comes from."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.engine.stored.dumping import dump_of
from perdure.errors import ValueNotReadable
from perdure.journal.verify import Violation, verify
from perdure.store.codecs import BlobRef, blob_refs
from perdure.store.shapes import RunDump


def verify_dump(stored: RunDump, *, lost_blobs: Sequence[str]) -> list[Violation]:
    """Return everything that is wrong with a run, nothing if it is whole. `lost_blobs` cannot be read."""
    try:
        unused = _unused_blobs(stored)
    except ValueNotReadable as error:
        return [Violation(invariant="I4", problem=f"a value of the run cannot be read: {error}")]
    return verify(dump_of(stored, lost_blobs, unused))


def _unused_blobs(stored: RunDump) -> list[str]:
    """Return the blobs to which anything that is stored of the run refers without their being recorded as used."""
    records = (stored.stored.run, *stored.all_nodes, *stored.stored.steps, *stored.items, *stored.events)
    refs = set[BlobRef]().union(*(blob_refs(msgspec.json.encode(record)) for record in records))
    return sorted({ref.digest for ref in refs} - {use.digest for use in stored.blobs})
