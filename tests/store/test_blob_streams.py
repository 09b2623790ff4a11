"""Blobs that are never whole in memory: written in chunks or from files, read in chunks or as files, kept young, collected."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.clock import SystemClock
from perdure.errors import BlobDamaged, BlobMissing, StoreFull, StoreUnavailable
from perdure.ids import digest_of
from perdure.store.blobs import BlobStore, FolderBlobs
from perdure.store.blobs.base import CHUNK_BYTES
from perdure.store.codecs import BlobRef

CONTENT = b"content " * 1_000
DIGEST = digest_of(CONTENT)
HOUR_MICROS = 60 * 60 * 1_000_000


class Later(SystemClock):
    """A clock that is two days ahead."""

    def now_micros(self) -> int:
        return super().now_micros() + 48 * HOUR_MICROS


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where scratch folders are that are not beside the blobs."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def leftovers(store: BlobStore, temporary: Path) -> list[Path]:
    return [*temporary.iterdir(), *Path(store.place).glob("tmp/*")]


def file_of(store: FolderBlobs, digest: str = DIGEST) -> Path:
    return Path(store.place) / digest[:2] / digest


async def listed(store: BlobStore) -> dict[str, int]:
    return {blob.digest: blob.size async for blob in store.list()}


# What every place promises


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 7])
async def test_what_is_put_in_chunks_comes_back_in_chunks(blobs: BlobStore, temporary: Path, size: int):
    content = os.urandom(size)

    ref = await blobs.put_chunks(content[start : start + 100_000] for start in range(0, size, 100_000))

    assert ref == BlobRef(digest_of(content), size)
    assert b"".join(await asyncio.to_thread(list, blobs.chunks_sync(ref.digest, size))) == content
    assert await blobs.get(ref.digest, size) == content
    await blobs.check(ref.digest, size)
    assert leftovers(blobs, temporary) == []


async def test_a_file_is_put_and_stays_where_it_is(blobs: BlobStore, temporary: Path, tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)

    ref = await blobs.put_file(path)

    assert await blobs.get(ref.digest, ref.size) == CONTENT
    assert path.read_bytes() == CONTENT
    assert leftovers(blobs, temporary) == []


async def test_a_file_in_scratch_becomes_a_blob(blobs: BlobStore, temporary: Path):
    scratch = await blobs.make_scratch()
    (scratch / "file").write_bytes(CONTENT)
    os.utime(scratch / "file", (1, 1))  # as programs do that keep the times of what they copy

    ref = await blobs.put_file(scratch / "file")
    blobs.remove_scratch(scratch)
    await blobs.close()

    assert blobs.get_sync(ref.digest, ref.size) == CONTENT
    assert leftovers(blobs, temporary) == []


async def test_a_scratch_folder_is_removed_also_when_the_place_is_closed(blobs: BlobStore, temporary: Path):
    scratch = await blobs.make_scratch()
    await blobs.close()

    blobs.remove_scratch(scratch)

    assert leftovers(blobs, temporary) == []


async def test_a_blob_from_scratch_is_young(blobs: BlobStore):
    scratch = await blobs.make_scratch()
    (scratch / "file").write_bytes(CONTENT)
    os.utime(scratch / "file", (1, 1))

    await blobs.put_file(scratch / "file")

    (blob,) = [blob async for blob in blobs.list()]
    assert blob.stored_at > SystemClock().now_micros() - HOUR_MICROS


async def test_what_has_a_second_name_is_copied(folder: FolderBlobs, tmp_path: Path):
    (tmp_path / "mine").write_bytes(CONTENT)
    scratch = await folder.make_scratch()
    os.link(tmp_path / "mine", scratch / "linked")
    os.symlink(tmp_path / "mine", scratch / "pointed")

    for name in ("linked", "pointed"):
        await folder.put_file(scratch / name)
        (tmp_path / "mine").write_bytes(b"changed afterwards")
        assert await folder.get(DIGEST, len(CONTENT)) == CONTENT
        (tmp_path / "mine").write_bytes(CONTENT)


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir])
async def test_only_files_are_put(blobs: BlobStore, tmp_path: Path, plant: object):
    assert callable(plant)
    plant(tmp_path / "other")

    with pytest.raises((ValueError, IsADirectoryError)):
        await blobs.put_file(tmp_path / "other")


async def test_a_file_that_is_not_there_is_the_callers_mistake(blobs: BlobStore, tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        await blobs.put_file(tmp_path / "nowhere")
    assert await listed(blobs) == {}


async def test_what_the_chunks_raise_is_passed_on_and_nothing_is_kept(blobs: BlobStore, temporary: Path):
    def broken() -> Iterator[bytes]:
        yield CONTENT
        raise OSError(errno.ENOSPC, "not the disk of the blobs")

    with pytest.raises(OSError, match="not the disk") as caught:
        await blobs.put_chunks(broken())

    assert not isinstance(caught.value, StoreFull)
    assert await listed(blobs) == {}
    assert leftovers(blobs, temporary) == []


async def test_a_missing_blob_is_missing_in_every_way(blobs: BlobStore, tmp_path: Path):
    with pytest.raises(BlobMissing):
        await blobs.check(DIGEST, len(CONTENT))
    with pytest.raises(BlobMissing):
        await blobs.refresh(DIGEST, len(CONTENT))
    with pytest.raises(BlobMissing):
        await blobs.local_file(DIGEST, len(CONTENT), tmp_path)
    assert not await blobs.delete_if_older(DIGEST, 2 * SystemClock().now_micros())


async def test_another_size_is_damage_in_every_way(blobs: BlobStore, tmp_path: Path):
    await blobs.put(DIGEST, CONTENT)

    for attempt in (blobs.check(DIGEST, 1), blobs.refresh(DIGEST, 1), blobs.local_file(DIGEST, 1, tmp_path)):
        with pytest.raises(BlobDamaged, match="bytes instead of"):
            await attempt


async def test_the_last_chunk_of_wrong_content_never_comes(blobs: BlobStore):
    content = os.urandom(2 * CHUNK_BYTES + 1)
    wrong = digest_of(b"something else")
    await blobs.put(wrong, content)
    seen: list[bytes] = []

    with pytest.raises(BlobDamaged, match="altered"):
        seen.extend(blobs.chunks_sync(wrong, len(content)))

    assert len(b"".join(seen)) < len(content)
    with pytest.raises(BlobDamaged, match="altered"):
        await blobs.check(wrong, len(content))


async def test_a_blob_can_be_had_as_a_file(blobs: BlobStore):
    content = os.urandom(2 * CHUNK_BYTES + 1)
    await blobs.put_chunks([content])
    scratch = await blobs.make_scratch()

    path = await blobs.local_file(digest_of(content), len(content), scratch)
    again = await blobs.local_file(digest_of(content), len(content), scratch)

    assert path.read_bytes() == content
    assert path == again
    assert path.stat().st_mode & 0o222 == 0


async def test_a_blob_with_wrong_content_cannot_be_had_as_a_file(blobs: BlobStore):
    wrong = digest_of(b"something else")
    await blobs.put(wrong, CONTENT)
    scratch = await blobs.make_scratch()

    with pytest.raises(BlobDamaged):
        await blobs.local_file(wrong, len(CONTENT), scratch)


async def test_an_old_blob_is_deleted_and_a_young_one_is_not(blobs: BlobStore):
    await blobs.put(DIGEST, CONTENT)
    now = SystemClock().now_micros()

    assert not await blobs.delete_if_older(DIGEST, now - HOUR_MICROS)
    assert await blobs.exists(DIGEST)
    assert await blobs.delete_if_older(DIGEST, now + HOUR_MICROS)
    assert not await blobs.exists(DIGEST)


async def test_only_a_digest_names_a_blob(blobs: BlobStore, tmp_path: Path):
    for attempt in (blobs.refresh("../x", 1), blobs.local_file("../x", 1, tmp_path), blobs.delete_if_older("../x", 1)):
        with pytest.raises(ValueError, match="not the name of a blob"):
            await attempt


async def test_large_blobs_do_not_hold_up_small_ones(blobs: BlobStore):
    held = threading.Event()

    def slow() -> Iterator[bytes]:
        held.wait()
        yield os.urandom(16)

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(blobs.put_chunks(slow()))
        async with asyncio.timeout(30):
            await blobs.put(DIGEST, CONTENT)
        held.set()

    assert len(await listed(blobs)) == 9


# Young again


async def test_a_blob_that_is_referred_to_again_is_young_again(folder: FolderBlobs):
    await folder.put(DIGEST, CONTENT)
    os.utime(file_of(folder), (1, 1))

    await folder.refresh(DIGEST, len(CONTENT))

    (blob,) = [blob async for blob in folder.list()]
    assert blob.stored_at > SystemClock().now_micros() - HOUR_MICROS


async def test_an_old_object_that_is_referred_to_again_is_young_again():
    from obstore.store import MemoryStore

    from perdure.store.blobs.objects import ObjectBlobs

    held = MemoryStore()
    today, later = ObjectBlobs(held, "memory"), ObjectBlobs(held, "memory", clock=Later())
    await today.put(DIGEST, CONTENT)
    stored: list[int] = []

    for store in (today, later):
        await store.refresh(DIGEST, len(CONTENT))
        stored += [blob.stored_at async for blob in store.list()]

    assert len(stored) == 2
    assert stored[0] < stored[1]
    assert await today.get(DIGEST, len(CONTENT)) == CONTENT
    await today.close()
    await later.close()


@pytest.mark.parametrize("way", ["put", "put_chunks", "refresh"])
async def test_collecting_waits_for_whoever_makes_a_blob_young(
    folder: FolderBlobs, monkeypatch: pytest.MonkeyPatch, way: str
):
    """The collector has seen an old blob; the writer has found it there and is about to make it young."""
    await folder.put(DIGEST, CONTENT)
    os.utime(file_of(folder), (1, 1))
    found, may_go_on, touch = threading.Event(), threading.Event(), os.utime

    def slow_touch(path: str | Path, *args: object, **options: object) -> None:
        if path == DIGEST:
            found.set()
            may_go_on.wait(30)
        touch(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "utime", slow_touch)
    write = {
        "put": lambda: folder.put(DIGEST, CONTENT),
        "put_chunks": lambda: folder.put_chunks([CONTENT]),
        "refresh": lambda: folder.refresh(DIGEST, len(CONTENT)),
    }[way]

    async with asyncio.TaskGroup() as group:
        group.create_task(_ignored(write()))
        await asyncio.to_thread(found.wait, 30)
        collecting = group.create_task(folder.delete_if_older(DIGEST, SystemClock().now_micros() - HOUR_MICROS))
        await asyncio.to_thread(_until_waited_for, file_of(folder).parent)
        may_go_on.set()

    assert collecting.result() is False
    assert await folder.get(DIGEST, len(CONTENT)) == CONTENT


async def _ignored(work: object) -> None:
    assert hasattr(work, "__await__")
    await work  # type: ignore[misc]


def _until_waited_for(leaf: Path) -> None:
    """Wait until somebody waits for the lock of a folder, as the kernel tells; or so long that nobody does."""
    inode = f":{leaf.stat().st_ino} "
    deadline = time.monotonic() + 5
    while not any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()):
        if time.monotonic() > deadline:
            return


async def test_a_file_system_without_locks_is_not_collected_from(folder: FolderBlobs, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", fail)
    await folder.put(DIGEST, CONTENT)
    await folder.refresh(DIGEST, len(CONTENT))

    with pytest.raises(StoreUnavailable, match="no locks here"):
        await folder.delete_if_older(DIGEST, 2 * SystemClock().now_micros())
    assert await folder.exists(DIGEST)


# A folder


async def test_everything_is_synced_before_put_chunks_returns(folder: FolderBlobs, monkeypatch: pytest.MonkeyPatch):
    await folder.put(digest_of(b"first"), b"first")
    steps: list[str] = []
    sync, rename = os.fsync, os.rename

    def watched_sync(descriptor: int) -> None:
        steps.append("sync folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "sync file")
        sync(descriptor)

    def watched_rename(source: str, target: str, **folders: int) -> None:
        steps.append("rename")
        rename(source, target, **folders)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "rename", watched_rename)

    await folder.put_chunks([CONTENT])

    assert steps == ["sync file", "rename", "sync folder"]


async def test_a_file_that_was_altered_after_it_was_checked_is_damage(folder: FolderBlobs, tmp_path: Path):
    await folder.put(DIGEST, CONTENT)
    await folder.local_file(DIGEST, len(CONTENT), tmp_path)

    file_of(folder).write_bytes(CONTENT[:-1] + b"!")

    with pytest.raises(BlobDamaged, match="altered"):
        await folder.local_file(DIGEST, len(CONTENT), tmp_path)


async def test_a_file_that_is_written_to_while_it_is_kept_is_refused(folder: FolderBlobs):
    scratch = await folder.make_scratch()
    path = scratch / "file"
    path.write_bytes(CONTENT)

    with grown_while_read(path), pytest.raises(ValueError, match="Close it"):
        await folder.put_file(path)

    assert await listed(folder) == {}


@contextmanager
def grown_while_read(path: Path) -> Generator[None]:
    """Let a file grow whenever somebody has looked at an open file."""
    looked = os.fstat

    def grow(descriptor: int) -> os.stat_result:
        found = looked(descriptor)
        with path.open("ab") as file:
            file.write(b"more")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fstat", grow)
        yield


@pytest.mark.parametrize("number", ["ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("operation", ["fsync", "rename"])
async def test_a_full_disk_is_a_clear_error_and_leaves_nothing(
    folder: FolderBlobs, monkeypatch: pytest.MonkeyPatch, temporary: Path, operation: str, number: str
):
    def fail(*_: object, **__: object) -> None:
        raise OSError(getattr(errno, number), "the disk says no")

    await folder.put(digest_of(b"first"), b"first")
    with monkeypatch.context() as patch:
        patch.setattr(os, operation, fail)
        with pytest.raises(StoreFull, match="the disk says no"):
            await folder.put_chunks([CONTENT])

    assert leftovers(folder, temporary) == []
    assert not await folder.exists(DIGEST)
    await folder.put_chunks([CONTENT])
    assert await folder.get(DIGEST, len(CONTENT)) == CONTENT


async def test_a_scratch_folder_is_removed_when_nothing_was_written_to_it_for_a_day(tmp_path: Path):
    today = FolderBlobs(tmp_path)
    old, used = await today.make_scratch(), await today.make_scratch()
    (old / "file").write_bytes(b"half a vid")
    (used / "file").write_bytes(b"half a vid")
    for path in (old / "file", old, used):
        os.utime(path, (1, 1))

    removed = today.remove_leftovers()

    assert removed == 1
    assert list((tmp_path / "tmp").iterdir()) == [used]
    await today.close()


@pytest.mark.slow
def test_a_kill_before_any_step_of_putting_chunks_leaves_no_wrong_file(tmp_path: Path):
    survived = 0
    for step in range(1, 200):
        store = FolderBlobs(tmp_path / str(step))
        status = subprocess.run(
            [sys.executable, "-c", DIE_BEFORE_STEP, store.place, str(step)], timeout=60, check=False
        ).returncode

        assert all(digest_of(file.read_bytes()) == file.name for file in Path(store.place).glob("??/*"))
        assert store.put_chunks_sync([CONTENT]) == BlobRef(DIGEST, len(CONTENT))
        assert store.get_sync(DIGEST, len(CONTENT)) == CONTENT
        if status == 0:
            break
        assert status == -signal.SIGKILL
        survived += 1

    assert survived > 10


DIE_BEFORE_STEP = """
import builtins, os, signal, sys
from perdure.store.blobs import FolderBlobs

blobs = FolderBlobs(sys.argv[1])
blobs.make_scratch_sync()
steps_left = int(sys.argv[2])

def counted(operation):
    def step(*args, **kwargs):
        global steps_left
        steps_left -= 1
        if steps_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return operation(*args, **kwargs)
    return step

for name in ("open", "close", "mkdir", "stat", "fsync", "rename", "unlink", "utime", "fchmod"):
    setattr(os, name, counted(getattr(os, name)))
blobs.put_chunks_sync([b"content " * 500, b"content " * 500])
"""
