"""Backing up a store that is one file, with what lies beside it, while runs go on.

Rows come first, blobs after them: whatever the rows refer to was durable before they were. Files of the archive that the copy
knows of come last.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec

from perdure.clock import Clock
from perdure.errors import ProgramError
from perdure.ids import new_id
from perdure.store.base import Store
from perdure.store.blobs import BlobStore, open_blobs
from perdure.store.files import sync_folder
from perdure.store.opening import default_archive_folder, default_blobs_url, open_store


class BackedUp(msgspec.Struct, frozen=True, kw_only=True):
    """A backup of a store."""

    path: Path
    url: str
    """What to open it by."""
    size: int
    """Of the database file, in bytes."""
    blobs: int
    archives: int
    """How many files of the archive were copied."""


async def back_up(
    store: Store, blobs: BlobStore, archive_folder: Path, target: Path, *, replaces: bool, clock: Clock
) -> BackedUp:
    """Copy a store into a file, its blobs and its archive beside it, where a store at that place looks for them.

    Raises ProgramError if something is there and is not to be replaced, and StoreUnavailable for a store that is no file.
    """
    target = await asyncio.to_thread(_prepared, target, replaces=replaces)
    await store.back_up(target, target.with_name(f".{target.name}.{new_id()}.part"))
    url = f"sqlite:///{target}"
    copied = open_blobs(default_blobs_url(url), clock=clock)
    try:
        count = await _copy_blobs(blobs, copied)
    finally:
        await copied.close()
    archives = await _copy_archive(url, archive_folder, clock)
    size = (await asyncio.to_thread(target.stat)).st_size
    return BackedUp(path=target, url=url, size=size, blobs=count, archives=archives)


def _prepared(target: Path, *, replaces: bool) -> Path:
    if target.exists() and not replaces:
        raise ProgramError(
            f"{target} is there already. Name another place, or say that it is to be replaced (--force)."
        )
    # A log belongs to the file that it was written for; beside another one it would damage that.
    if target.with_name(target.name + "-wal").exists():
        raise ProgramError(f"{target} is in use: there is a log beside it. Name another place.")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.absolute()


async def _copy_blobs(source: BlobStore, target: BlobStore) -> int:
    count = 0
    async for blob in source.list():
        if not await target.exists(blob.digest):
            await target.put_chunks(source.chunks_sync(blob.digest, blob.size))
        count += 1
    return count


async def _copy_archive(url: str, source: Path, clock: Clock) -> int:
    store = await open_store(url, clock=clock)
    try:
        files = await store.archive_files()
    finally:
        await store.close()
    return await asyncio.to_thread(_copy_files, sorted(files), source, default_archive_folder(url))


def _copy_files(names: list[str], source: Path, target: Path) -> int:
    if not names:
        return 0
    if missing := [name for name in names if not (source / name).is_file()]:
        raise ProgramError(
            f"Not all of the archive is in {source}: {', '.join(missing[:3])} {'is' if len(missing) == 1 else 'are'} not there. "
            "Put the files back, or say where the archive is (archive_folder, --archive). The database and its blobs were copied."
        )
    target.mkdir(0o700, exist_ok=True)
    for name in names:
        if Path(name).name == name and not (target / name).exists():
            partial = target / f"{name}.part"
            shutil.copyfile(source / name, partial)
            partial.replace(target / name)
    sync_folder(target)
    return len(names)
