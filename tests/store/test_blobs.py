from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from perdure.clock import SystemClock
from perdure.errors import BlobDamaged, BlobMissing, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from perdure.ids import digest_of
from perdure.store.blobs import BlobStore, FolderBlobs, open_blobs

CONTENT = b"content " * 1_000
DIGEST = digest_of(CONTENT)
DAY_MICROS = 24 * 60 * 60 * 1_000_000


def file_of(store: BlobStore, digest: str = DIGEST) -> Path:
    return Path(store.place) / digest[:2] / digest


def leftovers_in(store: BlobStore) -> list[Path]:
    return list(Path(store.place).glob("tmp/*"))


def check_every_file(store: BlobStore) -> int:
    """Return how many blobs there are, each being what its name says."""
    files = list(Path(store.place).glob("??/*"))
    assert all(digest_of(file.read_bytes()) == file.name for file in files)
    return len(files)


Putting = Callable[[BlobStore], Awaitable[None]]


async def put_named(store: BlobStore) -> None:
    await store.put(DIGEST, CONTENT)


async def put_unnamed(store: BlobStore) -> None:
    """Put the content by somebody who does not know its digest."""
    assert await asyncio.to_thread(store.put_unnamed_sync, CONTENT) == DIGEST


@pytest.fixture(autouse=True)
def named_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has small contents named while they are written, too."""
    monkeypatch.setattr("perdure.store.blobs.folder.NAMED_BESIDE_BYTES", 0)


both_ways = pytest.mark.parametrize("put", [put_named, put_unnamed])

# What every place promises


async def test_a_blob_comes_back_as_it_was(blobs: BlobStore):
    for content in (b"", b"\x00", CONTENT, os.urandom(3_000_000)):
        await blobs.put(digest_of(content), content)

        assert await blobs.get(digest_of(content), len(content)) == content
        assert await blobs.exists(digest_of(content))


async def test_a_thread_can_put_and_get_without_a_loop(blobs: BlobStore):
    await asyncio.to_thread(blobs.put_sync, DIGEST, CONTENT)

    assert await asyncio.to_thread(blobs.get_sync, DIGEST, len(CONTENT)) == CONTENT


@both_ways
async def test_putting_twice_is_putting_once(blobs: BlobStore, put: Putting):
    await blobs.put(DIGEST, CONTENT)
    await put(blobs)

    assert [(blob.digest, blob.size) async for blob in blobs.list()] == [(DIGEST, len(CONTENT))]


async def test_content_gets_its_name_while_it_is_put(blobs: BlobStore):
    for content in (b"", CONTENT, os.urandom(3_000_000)):
        digest = await asyncio.to_thread(blobs.put_unnamed_sync, content)

        assert digest == digest_of(content)
        assert await blobs.get(digest, len(content)) == content


async def test_who_finds_no_thread_for_the_name_works_it_out_first(
    folder: FolderBlobs, monkeypatch: pytest.MonkeyPatch
):
    is_named, go_on = threading.Event(), threading.Event()

    def slowly(content: bytes) -> str:
        is_named.set()
        assert go_on.wait(10)
        return digest_of(content)

    monkeypatch.setattr("perdure.store.blobs.folder.NAMING", 1)
    monkeypatch.setattr("perdure.store.blobs.folder.digest_of", slowly)
    store = FolderBlobs(folder.place)
    async with asyncio.TaskGroup() as group:
        slow = group.create_task(asyncio.to_thread(store.put_unnamed_sync, b"slow"))
        await asyncio.to_thread(is_named.wait, 10)

        assert await asyncio.to_thread(store.put_unnamed_sync, CONTENT) == DIGEST

        assert not slow.done()
        go_on.set()
    await store.close()
    assert check_every_file(folder) == 2


async def test_a_body_that_ends_late_can_put_what_it_gives(tmp_path: Path):
    store = open_blobs((tmp_path / "blobs").as_uri())
    await store.close()

    await put_unnamed(store)

    assert store.get_sync(DIGEST, len(CONTENT)) == CONTENT


async def test_what_is_not_there_is_missing(blobs: BlobStore):
    assert not await blobs.exists(DIGEST)
    with pytest.raises(BlobMissing, match=DIGEST) as caught:
        await blobs.get(DIGEST, len(CONTENT))

    assert caught.value.place == blobs.place


async def test_a_deleted_blob_is_gone_and_can_be_put_again(blobs: BlobStore):
    await blobs.delete(DIGEST)
    await blobs.put(DIGEST, CONTENT)
    await blobs.delete(DIGEST)

    assert not await blobs.exists(DIGEST)
    assert [blob async for blob in blobs.list()] == []
    await blobs.put(DIGEST, CONTENT)
    assert await blobs.get(DIGEST, len(CONTENT)) == CONTENT


async def test_a_list_shows_every_blob_with_its_size_and_age(blobs: BlobStore):
    contents = {digest_of(content): content for content in (bytes([number]) * number for number in range(100))}
    started = SystemClock().now_micros()
    for digest, content in contents.items():
        await blobs.put(digest, content)

    listed = [blob async for blob in blobs.list()]

    assert {blob.digest: blob.size for blob in listed} == {digest: len(held) for digest, held in contents.items()}
    assert all(abs(blob.stored_at - started) < 60_000_000 for blob in listed)


async def test_another_size_than_the_stored_one_is_damage(blobs: BlobStore):
    await blobs.put(DIGEST, CONTENT)

    with pytest.raises(BlobDamaged, match="bytes instead of"):
        await blobs.get(DIGEST, len(CONTENT) + 1)


@pytest.mark.parametrize(
    "name", ["", "abc", "../" * 21 + "x", "/etc/passwd", DIGEST.upper(), DIGEST + "\n", DIGEST[:-1] + "\x00", "é" * 64]
)
async def test_only_a_digest_names_a_blob(blobs: BlobStore, name: str):
    with pytest.raises(ValueError, match="not the name of a blob"):
        await blobs.put(name, CONTENT)
    with pytest.raises(ValueError, match="not the name of a blob"):
        await blobs.get(name, 1)
    with pytest.raises(ValueError, match="not the name of a blob"):
        await blobs.exists(name)
    with pytest.raises(ValueError, match="not the name of a blob"):
        await blobs.delete(name)


async def test_content_under_a_digest_of_something_else_is_damage(blobs: BlobStore):
    await blobs.put(digest_of(b"other"), CONTENT)

    with pytest.raises(BlobDamaged):
        await blobs.get(digest_of(b"other"), len(CONTENT))


async def test_many_at_once_are_no_more_than_the_threads_allow(blobs: BlobStore):
    contents = [number.to_bytes(4) * 1_000 for number in range(200)]
    before = threading.active_count()

    async with asyncio.TaskGroup() as group:
        for content in contents:
            group.create_task(blobs.put(digest_of(content), content))

    assert threading.active_count() <= before + 4
    assert len([blob async for blob in blobs.list()]) == len(contents)


async def test_closing_ends_the_threads(tmp_path: Path):
    before = threading.active_count()
    for url in ((tmp_path / "blobs").as_uri(), "memory:///"):
        store = open_blobs(url)
        await store.put(DIGEST, CONTENT)
        store.put_unnamed_sync(CONTENT)
        await store.close()
    await asyncio.get_running_loop().shutdown_default_executor()

    assert threading.active_count() <= before


# A folder


def test_only_the_owner_can_read_the_folder(folder: FolderBlobs):
    folder.put_sync(DIGEST, CONTENT)

    root = Path(folder.place)
    kept = {path.relative_to(root): stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    leaves = {Path(f"{first:02x}"): 0o700 for first in range(256)}
    assert kept == {Path(): 0o700, Path("tmp"): 0o700, **leaves, Path(DIGEST[:2], DIGEST): 0o600}


@both_ways
async def test_everything_is_synced_before_put_returns(
    folder: FolderBlobs, monkeypatch: pytest.MonkeyPatch, put: Putting
):
    steps: list[str] = []
    sync, rename = os.fsync, os.rename

    def watched_sync(descriptor: int) -> None:
        steps.append("sync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        sync(descriptor)

    def watched_rename(source: str, target: str, **folders: int) -> None:
        steps.append("rename")
        rename(source, target, **folders)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "rename", watched_rename)

    await put(folder)
    first = steps.copy()
    steps.clear()
    await put(folder)

    # The folder itself and those in it come first, each durable in the one above.
    assert first == ["sync folder", "sync folder", "sync folder", "sync file", "rename", "sync folder"]
    if put is put_unnamed and "sync file" in steps:  # its name was not known yet
        steps.remove("sync file")
    assert steps == ["sync folder"]
    assert leftovers_in(folder) == []


async def test_altered_content_is_damage(folder: FolderBlobs):
    await folder.put(DIGEST, CONTENT)
    file_of(folder).write_bytes(CONTENT[:-1] + b"!")

    with pytest.raises(BlobDamaged, match="altered"):
        await folder.get(DIGEST, len(CONTENT))


async def test_a_truncated_blob_is_damage_and_is_mended_by_putting_it_again(folder: FolderBlobs):
    await folder.put(DIGEST, CONTENT)
    os.truncate(file_of(folder), 10)

    with pytest.raises(BlobDamaged, match="10 bytes instead of"):
        await folder.get(DIGEST, len(CONTENT))
    await folder.put(DIGEST, CONTENT)
    assert await folder.get(DIGEST, len(CONTENT)) == CONTENT


async def test_a_symbolic_link_in_place_of_a_blob_is_not_followed(folder: FolderBlobs, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(CONTENT)
    file_of(folder).parent.mkdir(parents=True)
    file_of(folder).symlink_to(elsewhere)

    with pytest.raises(BlobDamaged, match="not ours"):
        await folder.get(DIGEST, len(CONTENT))
    assert not await folder.exists(DIGEST)
    assert [blob async for blob in folder.list()] == []
    await folder.put(DIGEST, CONTENT)
    assert not file_of(folder).is_symlink()
    assert elsewhere.read_bytes() == CONTENT


def test_a_symbolic_link_in_place_of_a_folder_is_not_followed(folder: FolderBlobs, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / DIGEST).write_bytes(CONTENT)
    Path(folder.place).mkdir()
    (Path(folder.place) / DIGEST[:2]).symlink_to(elsewhere)

    with pytest.raises(BlobDamaged, match="not ours"):
        folder.get_sync(DIGEST, len(CONTENT))
    with pytest.raises(BlobDamaged, match="not ours"):
        folder.put_sync(DIGEST, CONTENT)


@pytest.mark.parametrize("plant", [os.mkdir, os.mkfifo])
async def test_what_is_no_file_is_damage(folder: FolderBlobs, plant: object):
    file_of(folder).parent.mkdir(parents=True)
    assert callable(plant)
    plant(file_of(folder))

    with pytest.raises(BlobDamaged):
        await folder.get(DIGEST, len(CONTENT))


async def test_temporary_files_are_removed_when_they_are_a_day_old(tmp_path: Path):
    class Tomorrow(SystemClock):
        def now_micros(self) -> int:
            return super().now_micros() + DAY_MICROS + 60_000_000

    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "left").write_bytes(b"half a bl")
    today, tomorrow = FolderBlobs(tmp_path), FolderBlobs(tmp_path, clock=Tomorrow())

    await today.put(DIGEST, CONTENT)
    assert [path.name for path in leftovers_in(today)] == ["left"]
    await tomorrow.put(DIGEST, CONTENT)
    assert leftovers_in(tomorrow) == []
    assert await tomorrow.get(DIGEST, len(CONTENT)) == CONTENT
    await today.close()
    await tomorrow.close()


async def test_putting_a_blob_that_is_there_makes_it_young_again(folder: FolderBlobs):
    await folder.put(DIGEST, CONTENT)
    os.utime(file_of(folder), (1, 1))

    await folder.put(DIGEST, CONTENT)

    (blob,) = [blob async for blob in folder.list()]
    assert blob.stored_at > SystemClock().now_micros() - 60_000_000


async def test_a_folder_that_was_removed_is_made_again_by_the_next_put(folder: FolderBlobs):
    await folder.put(DIGEST, CONTENT)
    shutil.rmtree(folder.place)

    with pytest.raises(StoreUnavailable, match="removed"):
        await folder.put(DIGEST, CONTENT)
    await folder.put(DIGEST, CONTENT)
    assert await folder.get(DIGEST, len(CONTENT)) == CONTENT


async def test_a_file_in_place_of_the_folder_is_a_clear_error(tmp_path: Path):
    (tmp_path / "blobs").write_text("not a folder")
    store = FolderBlobs(tmp_path / "blobs")

    with pytest.raises(StoreError, match="cannot be used"):
        await store.put(DIGEST, CONTENT)
    await store.close()


# Others at the same time


def test_threads_and_processes_can_put_the_same_blobs_at_once(folder: FolderBlobs):
    contents = [Random(number).randbytes(200_000) for number in range(20)]
    others = [start(PUT_SEEDED, folder.place) for _ in range(2)]

    with ThreadPoolExecutor(8) as pool:
        puts = [pool.submit(folder.put_sync, digest_of(content), content) for content in contents for _ in range(8)]

    assert [put.exception() for put in puts] == [None] * len(puts)
    assert [other.wait(timeout=60) for other in others] == [0, 0]
    assert check_every_file(folder) == len(contents)
    assert leftovers_in(folder) == []


@pytest.mark.slow
def test_a_kill_while_a_blob_is_written_leaves_no_wrong_file_under_a_digest(folder: FolderBlobs):
    half_written = 0

    for _ in range(50):
        assert start(DIE_WHILE_WRITING, folder.place).wait(timeout=60) == -signal.SIGKILL

        check_every_file(folder)
        half_written += sum(0 < file.stat().st_size < LARGE for file in leftovers_in(folder))
        for file in leftovers_in(folder):
            file.unlink()

    # Below this, the kills came too early or too late to show anything.
    assert half_written >= 5
    folder.put_sync(DIGEST, CONTENT)
    assert folder.get_sync(DIGEST, len(CONTENT)) == CONTENT


@pytest.mark.slow
@pytest.mark.parametrize("way", ["named", "unnamed"])
def test_a_kill_before_any_step_of_putting_leaves_no_wrong_file_and_putting_again_helps(tmp_path: Path, way: str):
    survived: list[int] = []
    for step in range(1, 100):
        store = FolderBlobs(tmp_path / str(step))
        status = start(DIE_BEFORE_STEP, store.place, str(step), way).wait(timeout=60)

        check_every_file(store)
        store.put_sync(DIGEST, CONTENT)
        assert store.get_sync(DIGEST, len(CONTENT)) == CONTENT
        if status == 0:
            break
        assert status == -signal.SIGKILL
        survived.append(step)

    assert len(survived) > 10


# Trouble


def test_a_full_disk_is_a_clear_error_and_leaves_nothing_half_written(tmp_path: Path):
    place = tmp_path / "small"
    place.mkdir()

    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode == 0:
        mount = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
        command = ["unshare", "-rm", "sh", "-c", mount, "sh", str(place), sys.executable, FILL]
        outcome = subprocess.run(command, check=True, capture_output=True, env=environment(), timeout=60)
    else:
        outcome = fill_up_to_a_limit(place)

    assert outcome.stdout.decode().split() == ["StoreFull", "0", "True"]


def test_a_limit_on_file_sizes_is_like_a_full_disk(tmp_path: Path):
    assert fill_up_to_a_limit(tmp_path).stdout.decode().split() == ["StoreFull", "0", "True"]


@pytest.mark.parametrize(
    ("number", "expected"),
    [("ENOSPC", StoreFull), ("EDQUOT", StoreFull), ("EROFS", StoreReadOnly), ("EIO", StoreUnavailable)],
)
@pytest.mark.parametrize("operation", ["fsync", "rename", "mkdir"])
@both_ways
async def test_a_failing_disk_is_a_clear_error_and_putting_again_helps(
    folder: FolderBlobs,
    monkeypatch: pytest.MonkeyPatch,
    put: Putting,
    operation: str,
    number: str,
    expected: type[StoreError],
):
    def fail(*_: object, **__: object) -> None:
        raise OSError(getattr(errno, number), "the disk says no")

    if operation != "mkdir":  # folders are made with the first blob, all at once
        other = b"other"
        await folder.put(digest_of(other), other)
    with monkeypatch.context() as patch:
        patch.setattr(os, operation, fail)
        with pytest.raises(expected, match="the disk says no"):
            await put(folder)

    assert leftovers_in(folder) == []
    assert not await folder.exists(DIGEST)
    await put(folder)
    assert await folder.get(DIGEST, len(CONTENT)) == CONTENT


# Which place a URL means


@pytest.mark.parametrize("url", ["", "blobs", "/srv/blobs", "file://", "file://elsewhere/blobs"])
def test_a_url_without_a_place_is_refused(url: str):
    with pytest.raises(StoreUnavailable, match="file:///"):
        open_blobs(url)


async def test_a_folder_may_have_any_name(tmp_path: Path):
    store = open_blobs((tmp_path / "mit Leer%zeichen").as_uri())
    await store.put(DIGEST, CONTENT)
    await store.close()

    assert (tmp_path / "mit Leer%zeichen" / DIGEST[:2] / DIGEST).read_bytes() == CONTENT


def test_an_object_store_that_nobody_knows_is_refused_without_showing_credentials():
    with pytest.raises(StoreUnavailable, match="bogus://host/path") as caught:
        open_blobs("bogus://user:hunter2@host/path?token=hunter2")

    assert "hunter2" not in str(caught.value)


def test_without_obstore_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    for name in ("obstore", "obstore.store", "obstore.exceptions", "perdure.store.blobs.objects"):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(StoreUnavailable, match=r"pip install obstore\.$"):
        open_blobs("s3://bucket")


async def test_an_old_object_is_written_again_so_that_it_is_not_collected():
    from obstore.store import MemoryStore

    from perdure.store.blobs.objects import ObjectBlobs

    class Tomorrow(SystemClock):
        def now_micros(self) -> int:
            return super().now_micros() + DAY_MICROS

    held = MemoryStore()
    today, tomorrow = ObjectBlobs(held, "memory"), ObjectBlobs(held, "memory", clock=Tomorrow())

    stored = []
    for store in (today, today, tomorrow):
        await store.put(DIGEST, CONTENT)
        stored += [blob.stored_at async for blob in store.list()]

    assert stored[0] == stored[1] < stored[2]
    await today.close()
    await tomorrow.close()


# Programs that are run beside a test

PUT_SEEDED = """
import sys
from random import Random
from perdure.ids import digest_of
from perdure.store.blobs import FolderBlobs

blobs = FolderBlobs(sys.argv[1])
for _ in range(3):
    for number in range(20):
        content = Random(number).randbytes(200_000)
        blobs.put_sync(digest_of(content), content)
"""

LARGE = 32_000_000

# The kill comes from a thread, shortly after the file was made: writing does not hold the interpreter's lock.
DIE_WHILE_WRITING = """
import os, random, signal, sys, threading, time
from perdure.ids import digest_of
from perdure.store.blobs import FolderBlobs

content = os.urandom(32_000_000)
open_file = os.open

def open_and_die_soon(path, flags, *args, **kwargs):
    if flags & os.O_CREAT:
        threading.Timer(random.uniform(0, 0.01), os.kill, (os.getpid(), signal.SIGKILL)).start()
    return open_file(path, flags, *args, **kwargs)

os.open = open_and_die_soon
FolderBlobs(sys.argv[1]).put_sync(digest_of(content), content)
time.sleep(60)
"""

DIE_BEFORE_STEP = """
import builtins, os, signal, sys
from perdure.ids import digest_of
from perdure.store.blobs import FolderBlobs, folder
folder.NAMED_BESIDE_BYTES = 0

steps_left = int(sys.argv[2])

def counted(operation):
    def step(*args, **kwargs):
        global steps_left
        steps_left -= 1
        if steps_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return operation(*args, **kwargs)
    return step

content = b"content " * 1_000
blobs = FolderBlobs(sys.argv[1])
for name in ("open", "close", "mkdir", "stat", "fsync", "rename", "unlink"):
    setattr(os, name, counted(getattr(os, name)))
builtins.open = counted(builtins.open)  # between making the file and writing it
if sys.argv[3] == "named":
    blobs.put_sync(digest_of(content), content)
else:
    blobs.put_unnamed_sync(content)
"""

FILL = """
import os, sys
from perdure.errors import StoreError
from perdure.ids import digest_of
from perdure.store.blobs import FolderBlobs

if len(sys.argv) > 2:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
small, large = b"small", os.urandom(4_000_000)
blobs = FolderBlobs(os.path.join(sys.argv[1], "blobs"))
blobs.put_sync(digest_of(small), small)
try:
    blobs.put_sync(digest_of(large), large)
except StoreError as error:
    print(type(error).__name__)
print(len(os.listdir(os.path.join(blobs.place, "tmp"))))
blobs.put_sync(digest_of(b"after"), b"after")
print(blobs.get_sync(digest_of(small), len(small)) == small)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, *arguments], env=environment())


def fill_up_to_a_limit(place: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", FILL, str(place), "1000000"]
    return subprocess.run(command, check=True, capture_output=True, env=environment(), timeout=60)
