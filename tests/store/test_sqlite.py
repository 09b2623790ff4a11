"""What only a SQLite file can meet: a disk that fails, a folder that cannot be written to, a file that goes away, a fork."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec
import pytest

from perdure.errors import StoreDamaged, StoreReadOnly, StoreUnavailable
from perdure.ids import CommandId, RunId
from perdure.store.opening import open_store
from perdure.store.shapes import Command, RunFilter
from perdure.store.sqlite.pace import Pace
from perdure.store.sqlite.store import SqliteStore, open_sqlite
from perdure.store.transitions import Committed, Outcome, Rejected, Transition
from tests.store.builders import ENGINE, Draft, engine_row, save_workflow, started

NOBODY = 65534
_SYSTEM = apsw.vfs_names()[0]


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[SqliteStore]:
    store = await open_sqlite(sqlite_url)
    await save_workflow(store)
    yield store
    await store.close()


async def commit(store: SqliteStore, *transitions: Transition) -> list[Outcome]:
    return list(await store.commit(transitions))


async def begin(store: SqliteStore) -> Draft:
    draft = started()
    assert await commit(store, draft.transition()) == [Committed()]
    return draft


# Where commits are made: on the loop, rows on the loop and the rest in the thread, or in the thread

_WAYS = {"at once": (0.0, 0.0), "in halves": (1.0, 0.0), "in the thread": (1.0, 1.0)}


@pytest.fixture(params=_WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Has commits made in one way, however long they take."""
    to_commit, to_write = _WAYS[request.param]
    monkeypatch.setattr(Pace, "to_commit", lambda *_: to_commit)
    monkeypatch.setattr(Pace, "to_write", lambda *_: to_write)
    return request.param


async def test_a_group_is_durable_whichever_way_it_is_committed(store: SqliteStore, way: str) -> None:
    drafts = [started() for _ in range(20)]
    threads: set[int] = set()
    store._file.writer.set_commit_hook(lambda: bool(threads.add(threading.get_ident())))

    outcomes = await commit(store, *(draft.transition() for draft in drafts))

    assert outcomes == [Committed()] * 20
    assert threads == {threading.get_ident()} if way == "at once" else threads.isdisjoint({threading.get_ident()})
    other = apsw.Connection(str(store.path))
    assert other.execute("SELECT count(*) FROM run_state").get == 20
    other.close()


async def test_one_that_is_refused_harms_no_other_whichever_way_it_goes(store: SqliteStore, way: str) -> None:
    good, bad = [await begin(store) for _ in range(4)], await begin(store)
    spoilt = bad.next_node(0).transition()
    spoilt = msgspec.structs.replace(spoilt, events=(spoilt.events[0], spoilt.events[0]))

    outcomes = await commit(store, *(draft.next_node(0).transition() for draft in good[:2]), spoilt)
    after = await commit(store, *(draft.next_node(0).transition() for draft in good[2:]))

    assert outcomes[:2] == after == [Committed()] * 2, way
    assert isinstance(outcomes[2], Rejected)
    assert not store._file.writer.in_transaction


async def test_whoever_holds_the_file_is_waited_for_without_holding_up_the_loop(store: SqliteStore, way: str) -> None:
    draft = await begin(store)
    other = apsw.Connection(str(store.path))
    other.execute("BEGIN IMMEDIATE")
    committing = asyncio.create_task(commit(store, draft.next_node(0).transition()))

    turns = 0
    for _ in range(20):
        await asyncio.sleep(0.01)
        turns += not committing.done()
    other.execute("COMMIT")

    assert turns == 20, way
    assert await committing == [Committed()]
    other.close()


async def test_a_caller_who_leaves_leaves_nothing_half_done(store: SqliteStore, way: str) -> None:
    draft = await begin(store)
    transition = draft.next_node(0).transition()
    leaving = asyncio.create_task(commit(store, transition))
    await asyncio.sleep(0)  # it has begun, and is on its way unless it is committed at once
    leaving.cancel()
    await asyncio.wait((leaving,))

    assert leaving.cancelled() == (way != "at once")
    assert await commit(store, transition) == [Committed()], "it was written, and is found"
    stored = await store.load_run(draft.run_id)
    assert stored is not None
    assert stored.run.last_seq == transition.run.last_seq


async def test_a_command_is_kept_without_holding_up_the_loop(store: SqliteStore, way: str) -> None:
    draft = await begin(store)
    other = apsw.Connection(str(store.path))
    other.execute("BEGIN IMMEDIATE")
    command = Command(command_id=CommandId("c"), run_id=draft.run_id, kind="cancel", payload={}, created_at=1)
    telling = asyncio.create_task(store.add_command(command))

    await asyncio.sleep(0.1)
    assert not telling.done(), way
    other.execute("COMMIT")

    assert await telling
    assert await store.load_command(draft.run_id, command.command_id) == command
    assert not await store.add_command(command)
    other.close()


# Where reads are made: on the loop if they are short and nobody else reads, else in the thread


async def test_what_is_looked_up_by_its_key_is_read_on_the_loop(store: SqliteStore) -> None:
    draft = await begin(store)
    looking = store.load_state(draft.run_id)

    with pytest.raises(StopIteration) as found:
        looking.send(None)

    assert found.value.value == draft.projection.run


async def test_who_reads_for_long_holds_up_nobody_who_looks_something_up(store: SqliteStore) -> None:
    """One connection reads: while it is used in the thread, others wait for their turn there, and not on the loop."""
    draft = await begin(store)
    reading, done = threading.Event(), threading.Event()

    def read_for_long() -> None:
        reading.set()
        done.wait(10)

    long = asyncio.create_task(store._file.read(read_for_long))
    await asyncio.to_thread(reading.wait, 10)
    looking = [asyncio.create_task(store.load_state(draft.run_id)) for _ in range(5)]
    long.cancel()  # the thread goes on with it
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in looking)
    done.set()

    assert await asyncio.gather(*looking) == [draft.projection.run] * 5
    assert await store.load_state(draft.run_id) == draft.projection.run


async def test_after_a_look_that_took_long_others_are_taken_in_the_thread(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = await begin(store)
    monkeypatch.setattr("perdure.store.sqlite.file.LOOK_UP_SECONDS", -1.0)
    assert await store.load_state(draft.run_id) == draft.projection.run

    looking = store.load_state(draft.run_id)
    looking.send(None)  # it waits for the thread
    looking.close()


async def test_a_run_is_looked_up_if_it_is_small(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = await begin(store)
    with pytest.raises(StopIteration) as found:
        store.load_run(draft.run_id).send(None)
    monkeypatch.setattr("perdure.store.sqlite.store.FEW_EVENTS", 0)

    assert found.value.value == await store.load_run(draft.run_id)
    assert await store.load_run(RunId("nobody")) is None
    waits = store.load_run(draft.run_id)
    waits.send(None)
    waits.close()


def test_a_commit_has_the_connection_to_itself_also_while_the_loop_is_torn_down(sqlite_url: str, way: str) -> None:
    has_begun = threading.Event()
    seen: list[bool] = []
    outcomes: list[Outcome] = []

    def slowly() -> bool:
        has_begun.set()
        time.sleep(0.2)
        return False

    async def commit_at_the_last_moment(store: SqliteStore) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):  # all others have heard by then that they are cancelled
                await asyncio.sleep(0)
            seen.append(store._file.is_writing)
            outcomes.extend(await commit(store, started().transition()))
            await store.close()

    async def main() -> None:
        store = await open_sqlite(sqlite_url)
        await save_workflow(store)
        store._file.writer.set_commit_hook(slowly)
        left = [
            asyncio.create_task(commit(store, started().transition())),
            asyncio.create_task(commit_at_the_last_moment(store)),
        ]
        await asyncio.to_thread(has_begun.wait)
        assert not left[1].done()

    asyncio.run(main())  # cancels whatever is left

    assert seen == [way != "at once"]
    assert outcomes == [Committed()]
    connection = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
    assert connection.execute("SELECT count(*) FROM run_state").get == 2
    connection.close()


async def test_looking_things_up_leaves_the_loop_to_others(store: SqliteStore) -> None:
    draft = await begin(store)
    is_over = False
    longest, last = 0.0, time.perf_counter()

    async def tick() -> None:
        nonlocal longest, last
        while not is_over:
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
            await asyncio.sleep(0)

    async def look() -> None:
        for _ in range(300):
            assert await store.load_state(draft.run_id) is not None

    async with asyncio.TaskGroup() as group:
        ticking = group.create_task(tick())
        looking = [group.create_task(look()) for _ in range(20)]
        await asyncio.wait(looking)
        is_over = True
        await ticking

    assert longest < 0.25, f"the loop stood still for {longest:.3f} s"


async def test_commands_go_to_the_thread_where_the_disk_is_slow(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = await begin(store)
    threads: list[int] = []

    def be_slow() -> bool:
        threads.append(threading.get_ident())
        time.sleep(0.05)
        return False

    store._file.writer.set_commit_hook(be_slow)
    for number in range(30):
        await store.add_command(
            Command(
                command_id=CommandId(f"c{number}"), run_id=draft.run_id, kind="cancel", payload={}, created_at=number
            )
        )

    assert threads.count(threading.get_ident()) < 10
    assert threads[-1] != threading.get_ident()


async def test_a_store_is_closed_while_somebody_looks_things_up(sqlite_url: str) -> None:
    for _ in range(20):
        store = await open_sqlite(sqlite_url)

        async def look(store: SqliteStore = store) -> None:
            while await store.load_state(RunId("nobody")) is None:
                await asyncio.sleep(0)

        looking = [asyncio.create_task(look()) for _ in range(5)]
        await asyncio.sleep(0.002)
        await store.close()
        for ended in await asyncio.gather(*looking, return_exceptions=True):
            assert isinstance(ended, StoreUnavailable)


# A disk that fails


class _Disk(apsw.VFS):
    """The system's own files, of which syncs fail on demand."""

    def __init__(self) -> None:
        super().__init__("failing syncs", base=_SYSTEM, makedefault=True)
        self.failures = 0

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 -- SQLite's name
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: _Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__(_SYSTEM, name, flags)  # type: ignore[arg-type]
        self._disk = disk

    def xSync(self, flags: int) -> None:  # noqa: N802 -- SQLite's name
        if self._disk.failures:
            self._disk.failures -= 1
            error = apsw.IOError("the disk is gone")
            error.extendedresult = apsw.SQLITE_IOERR_FSYNC
            raise error
        super().xSync(flags)


@pytest.fixture
def disk() -> Iterator[_Disk]:
    disk = _Disk()
    yield disk
    disk.unregister()


async def test_a_disk_that_was_slow_for_a_moment_is_tried_on_the_loop_again(store: SqliteStore) -> None:
    store._door._pace.committed(1, 0.2)
    threads: list[int] = []
    store._file.writer.set_commit_hook(lambda: bool(threads.append(threading.get_ident())))

    for _ in range(100):
        await begin(store)

    assert threads[0] != threading.get_ident()
    assert threads[-1] == threading.get_ident()


@pytest.mark.usefixtures("way")
async def test_after_a_failed_sync_nothing_is_written_any_more(disk: _Disk, sqlite_url: str) -> None:
    store = await open_sqlite(sqlite_url)
    await save_workflow(store)
    draft = await begin(store)
    transition = draft.next_node(0).transition()

    disk.failures = 1
    with pytest.raises(StoreDamaged, match="disk failed"):
        await store.commit([transition])
    with pytest.raises(StoreDamaged, match="disk failed"):
        await store.commit([transition])
    with pytest.raises(StoreDamaged, match="disk failed"):
        await store.register_engine(engine_row(), ttl_seconds=1)

    assert disk.failures == 0
    stored = await store.load_run(draft.run_id)
    assert stored is not None
    assert stored.run.last_seq == transition.base_seq
    await store.close()
    reopened = await open_sqlite(sqlite_url)
    assert await commit(reopened, transition) == [Committed()]
    await reopened.close()


# A file that goes away


@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
async def test_a_file_that_is_gone_is_noticed_before_a_run_ends(store: SqliteStore, *, is_replaced: bool) -> None:
    await store.register_engine(engine_row(), ttl_seconds=60)
    draft = await begin(store)
    assert await store.renew_engine(ENGINE, ttl_seconds=60)

    moved = store.path.rename(store.path.with_name("elsewhere.db"))
    if is_replaced:
        shutil.copy(moved, store.path)

    with pytest.raises(StoreDamaged, match="removed or replaced"):
        await store.renew_engine(ENGINE, ttl_seconds=60)
    with pytest.raises(StoreDamaged, match="removed or replaced"):
        await store.commit([draft.complete_node("step0").end().transition()])

    moved.rename(store.path)
    assert await store.renew_engine(ENGINE, ttl_seconds=60)


async def test_a_file_that_is_gone_is_noticed_by_a_run_that_goes_on(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.store.sqlite.commit.LOOK_EVERY_SECONDS", 0.0)
    draft = await begin(store)

    store.path.unlink()

    with pytest.raises(StoreDamaged, match="removed or replaced"):
        await store.commit([draft.next_node(0).transition()])


# A file that cannot be written to


@contextmanager
def nobody() -> Iterator[None]:
    """Be someone whom rights apply to."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that others can reach. It can be written to again at the end."""
    for place in (tmp_path, *tmp_path.parents):
        if os.stat(place).st_uid == os.getuid() and place != Path("/"):
            place.chmod(place.stat().st_mode | 0o711)
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o755)
    yield folder
    folder.chmod(0o755)


async def _kept_run(folder: Path, *, leave_log: bool = False) -> RunId:
    """Store a run, then make everything read-only."""
    store = await open_sqlite(f"sqlite:///{folder}/perdure.db")
    await save_workflow(store)
    draft = await begin(store)
    if leave_log:
        for name in ("perdure.db", "perdure.db-wal"):
            shutil.copy(folder / name, folder / f"copy-{name}")
    await store.close()
    if leave_log:
        for name in ("perdure.db", "perdure.db-wal"):
            (folder / f"copy-{name}").rename(folder / name)
    freeze(folder)
    return draft.run_id


def freeze(folder: Path) -> None:
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)


def thaw(folder: Path) -> None:
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)


async def test_a_store_that_cannot_be_written_to_can_be_read(folder: Path) -> None:
    run_id = await _kept_run(folder)

    with nobody():
        store = await open_store(f"sqlite:///{folder}/perdure.db")
        (summary,) = await store.list_runs(RunFilter(), before=None, limit=10)
        dump = await store.dump_run(run_id)
        with pytest.raises(StoreReadOnly, match="read-only"):
            await store.commit([started().transition()])
        with pytest.raises(StoreReadOnly, match="read-only"):
            await store.add_command(Command(command_id=CommandId("c"), run_id=run_id, kind="cancel"))
        assert not await store.wait_for_news(0.01)
        await store.close()

    assert summary.run_id == run_id
    assert dump is not None
    assert len(dump.events) == dump.stored.run.last_seq
    assert os.listdir(folder) == ["perdure.db"]


async def test_a_reader_without_rights_sees_what_the_owner_goes_on_to_write(folder: Path) -> None:
    run_id = await _kept_run(folder)
    with nobody():
        reader = await open_store(f"sqlite:///{folder}/perdure.db")
        before = await reader.load_state(run_id)

    thaw(folder)
    owner = await open_sqlite(f"sqlite:///{folder}/perdure.db")
    stored = await owner.load_run(run_id)
    assert stored is not None
    draft = Draft.continued(stored)
    assert await commit(owner, draft.next_node(0).transition()) == [Committed()]
    thaw(folder)
    with nobody():
        live = await reader.load_state(run_id)
    await owner.close()
    with nobody():
        after = await reader.load_state(run_id)
        await reader.close()

    assert before is not None
    assert before.last_seq < draft.projection.run.last_seq
    assert live == after == draft.projection.run


async def test_a_log_that_cannot_be_read_is_explained(folder: Path) -> None:
    await _kept_run(folder, leave_log=True)

    with nobody(), pytest.raises(StoreReadOnly, match=r"perdure\.db-wal"):
        await open_store(f"sqlite:///{folder}/perdure.db")


async def test_a_store_cannot_be_made_where_nothing_can(folder: Path) -> None:
    freeze(folder)

    with nobody(), pytest.raises(StoreReadOnly, match="another --store"):
        await open_store(f"sqlite:///{folder}/perdure.db")


# News, closing and forks


async def test_a_busy_file_does_not_hold_up_who_waits_for_news(store: SqliteStore) -> None:
    await store.wait_for_news(0.15)
    other = apsw.Connection(str(store.path))
    other.execute("BEGIN EXCLUSIVE")
    loop = asyncio.get_running_loop()

    began = loop.time()
    assert not await store.wait_for_news(0.25)
    assert loop.time() - began < 1

    other.execute("CREATE TABLE something (x); COMMIT")
    assert await store.wait_for_news(5)
    other.close()


async def test_a_damaged_connection_is_reported_to_who_waits_for_news(store: SqliteStore) -> None:
    store._file.writer.close()

    with pytest.raises(StoreUnavailable):
        await store.wait_for_news(1)


async def test_a_closed_store_says_so(sqlite_url: str) -> None:
    store = await open_sqlite(sqlite_url)
    await store.close()
    await store.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        await store.list_engines()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.commit([started().transition()])


async def test_a_forked_process_does_not_use_the_file(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)

    with pytest.raises(StoreUnavailable, match="fork"):
        await store.commit([started().transition()])
    with pytest.raises(StoreUnavailable, match="fork"):
        await store.list_engines()

    monkeypatch.undo()
    assert await store.list_engines() == []
