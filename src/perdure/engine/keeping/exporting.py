"""Runs into bundles: read from one snapshot, written forwards, never whole in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from perdure.clock import Clock
from perdure.engine.stored.absence import look_for
from perdure.ids import EventId, RunId, Seq, new_id
from perdure.journal.events import Recorded
from perdure.journal.states import RunState
from perdure.store.base import Store
from perdure.store.blobs import BlobStore
from perdure.store.bundles import BundleWriter, Head
from perdure.store.files import sync_file, sync_folder, writing_to
from perdure.store.records import Record
from perdure.store.transitions import BlobUse

RECORDS_AT_ONCE = 1_000
"""How many records are handed to the thread that writes them."""


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a file."""

    head: Head
    position: int
    """Where its bundle begins in the file."""
    size: int
    digest: str


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was exported."""

    run_id: RunId
    path: Path
    size: int
    """In bytes."""
    digest: str
    events: int
    blobs: int


async def export_run(store: Store, blobs: BlobStore, run_id: RunId, path: Path, *, clock: Clock) -> Exported:
    """Write a run into a file of its own, which is whole or not there. One that lives is written as it is at one moment.

    Raises RunNotFound, BlobMissing or BlobDamaged if a blob of it cannot be read, and StoreFull, StoreReadOnly or
    StoreUnavailable if the file cannot be written.
    """
    with writing_to(path):
        packer = await _packed(store, blobs, run_id, path, clock)
    (packed,) = packer.packed
    return Exported(
        run_id=run_id,
        path=path,
        size=packed.size,
        digest=packed.digest,
        events=packed.head.last_seq,
        blobs=packer.blobs_written,
    )


async def _packed(store: Store, blobs: BlobStore, run_id: RunId, path: Path, clock: Clock) -> Packer:
    partial = path.with_name(f".{new_id()}.part")
    try:
        with await asyncio.to_thread(open, partial, "xb", opener=for_owner) as file:
            packer = Packer(file, blobs, clock)

            async def read() -> bool | None:
                await pack(store.read_runs([run_id]), packer)
                return True if packer.packed else None

            await look_for(store, run_id, read)
            await asyncio.to_thread(sync_file, file)
        os.replace(partial, path)
        await asyncio.to_thread(sync_folder, path.parent)
    finally:
        with suppress(OSError):
            partial.unlink()
    return packer


async def pack(pages: AsyncGenerator[Sequence[Record], None], packer: Packer) -> None:
    """Write all runs that these records tell of. Compressing and writing is done in a thread."""
    gathered: list[Sequence[Record]] = []
    count = 0
    async with aclosing(pages) as reading:
        async for page in reading:
            gathered.append(page)
            count += len(page)
            if count >= RECORDS_AT_ONCE:
                await asyncio.to_thread(packer.add, gathered)
                gathered, count = [], 0
    await asyncio.to_thread(packer.add, gathered)
    await asyncio.to_thread(packer.finish)


class Packer:
    """Writes runs into a file, one bundle after the other. Everything it does blocks."""

    def __init__(self, file: BinaryIO, blobs: BlobStore, clock: Clock) -> None:
        self.packed: list[Packed] = []
        """The runs of which all was written."""
        self.blobs_written = 0
        self._file = file
        self._blobs = blobs
        self._clock = clock
        self._early: list[Record] = []
        """Of the run that is written: what comes before its first event, without which its head cannot be written."""
        self._run: RunState | None = None
        self._head: Head
        self._writer: BundleWriter | None = None
        self._uses: list[BlobUse] = []
        self._position = 0

    def add(self, pages: Sequence[Sequence[Record]]) -> None:
        """Add pages of records. A run ends where another one begins."""
        for page in pages:
            if page and isinstance(page[0], RunState):
                self.finish()
                self._run = page[0]
            self._uses += (record for record in page if isinstance(record, BlobUse))
            if self._writer is None and page and isinstance(page[0], Recorded):
                self._begin(page[0].id)
            if self._writer is None:
                self._early += page
            else:
                self._writer.add(page)

    def abandon(self) -> None:
        """Take back what was written of the run that was added last, if it was not ended."""
        self._file.seek(self._position)
        self._file.truncate()
        self._run, self._writer, self._uses, self._early = None, None, [], []

    def finish(self) -> None:
        """End the bundle of the run that was added last."""
        if self._run is None:
            return
        if self._writer is None:
            self._begin(EventId(""))
        assert self._writer is not None
        for use in self._uses:
            self._writer.add_blob(use, self._blobs.chunks_sync(use.digest, use.size))
        self.blobs_written += len(self._uses)
        digest = self._writer.end()
        self.packed.append(
            Packed(head=self._head, position=self._position, size=self._writer.size, digest=digest),
        )
        self._position += self._writer.size
        self._run, self._writer, self._uses = None, None, []

    def _begin(self, birth: EventId) -> None:
        run = self._run
        assert run is not None
        self._head = Head(
            run_id=run.run_id,
            workflow=run.workflow,
            version=run.version,
            status=run.status,
            created_at=run.created_at,
            ended_at=run.ended_at,
            last_seq=run.last_seq,
            birth=birth if run.audit is None else run.audit.birth,
            written_at=self._clock.now_micros(),
        )
        self._writer = BundleWriter(self._file, self._head)
        self._writer.add(self._early)
        self._early = []


async def birth_of(store: Store, run: RunState) -> EventId | None:
    """Return the event that has created a run that is there: tells it from another one of its id."""
    if run.audit is not None:
        return run.audit.birth
    page = await store.load_events(run.run_id, after=Seq(0), limit=1)
    return page[0].id if page else None


def for_owner(path: str, flags: int) -> int:
    """Open a file that nobody else can read, and that is not somewhere else."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
