"""Deleting the values of a run: it is written anew without them, in the place of what is there, in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from msgspec.structs import replace

from perdure.clock import Clock
from perdure.engine.keeping.exporting import Packer, pack
from perdure.engine.keeping.importing import Source
from perdure.engine.stored.absence import look_for
from perdure.errors import RunNotEnded, StoreLocked
from perdure.ids import EventId, RunId, Seq, new_id
from perdure.journal.deletion import without_values
from perdure.journal.events import Recorded, RunDeleted
from perdure.journal.states import TERMINAL, RunState
from perdure.store.base import Store
from perdure.store.blobs import BlobStore
from perdure.store.records import KINDS, KeptCommand, Kind, Record
from perdure.store.shapes import LogLine, WorkflowVersion
from perdure.store.transitions import BlobUse, ItemRow

MOST_TRIES = 5
_VALUES_ALONE = (BlobUse, ItemRow, KeptCommand, LogLine)
"""Records of which nothing is left without their values."""


async def delete_run(
    store: Store, blobs: BlobStore, run_id: RunId, *, by: str = "", reason: str = "", clock: Clock
) -> bool:
    """Delete the values of a run that has ended. False if that was done before.

    Raises RunNotFound, RunArchived, RunNotEnded, and StoreLocked if somebody wants it to go on at the same time.
    """
    for _ in range(MOST_TRIES):
        run = await look_for(store, run_id, lambda: store.load_state(run_id))
        if await store.load_deletion(run_id) is not None:
            return False
        if run.status not in TERMINAL:
            raise RunNotEnded(run_id, run.status.value, "Nothing was deleted.")
        if await _replaced(store, blobs, run, RunDeleted(by=by, reason=reason), clock):
            return True
    raise StoreLocked(f"Run {run_id!r} changes, or somebody wants it to go on. Nothing was deleted. Try again.")


async def _replaced(store: Store, blobs: BlobStore, run: RunState, event: RunDeleted, clock: Clock) -> bool:
    deletion = Recorded(
        seq=Seq(run.last_seq + 1),
        id=EventId(new_id()),
        branch_id=run.branch_id,
        epoch=run.epoch,
        at=clock.now_micros(),
        event=event,
    )
    # A run may be larger than the memory: what is to stay goes through a file that nobody else sees.
    with await asyncio.to_thread(TemporaryFile, prefix="perdure-") as opened:
        file = cast("BinaryIO", opened)
        await pack(_emptied(store.read_runs([run.run_id]), deletion), Packer(file, blobs, clock))
        left = Source(file=file, place="what is left of the run")
        return await store.write_run(left.records(), instead_of=run.last_seq)


async def _emptied(
    pages: AsyncGenerator[Sequence[Record], None], deletion: Recorded
) -> AsyncGenerator[Sequence[Record], None]:
    is_told = False
    async with aclosing(pages) as reading:
        async for page in reading:
            if not is_told and any(KINDS[type(record)] > Kind.EVENT for record in page):
                is_told = True
                yield [deletion]  # behind all other events, also if the last of them is missing
            kept = [_without(record, deletion) for record in page if not isinstance(record, _VALUES_ALONE)]
            if kept:
                yield kept
    if not is_told:
        yield [deletion]


def _without(record: Record, deletion: Recorded) -> Record:
    if isinstance(record, WorkflowVersion):
        return record
    if isinstance(record, RunState):
        audit = record.audit and replace(record.audit, arrival=deletion.id)
        return replace(without_values(record), last_seq=deletion.seq, audit=audit)
    return without_values(record)
