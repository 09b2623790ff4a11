"""Runs that ended long ago leave the database for files, and are never in neither of the two."""

from __future__ import annotations

import asyncio
import errno
import os
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import apsw
import pytest

from perdure import Engine, EngineSettings, ask, node, workflow
from perdure.clock import SystemClock
from perdure.engine.inspect import find_run, load_run, verify_run
from perdure.engine.keeping.archives import all_archived, opened_archive, restore, verify_archived
from perdure.engine.keeping.archiving import Archiver
from perdure.engine.keeping.compacting import compact_run
from perdure.engine.keeping.importing import import_file
from perdure.engine.runs.run import Run
from perdure.errors import ArchiveMissing, BundleError, BundleTooLarge, RunArchived, RunNotFound, StoreFull, StoreLocked
from perdure.ids import DEFAULT_PROJECT, CommandId, RunId, Seq
from perdure.journal.verify import Violation
from perdure.store.base import Store
from perdure.store.blobs import BlobStore, open_blobs
from perdure.store.bundles import MOST_BYTES, BundleReader
from perdure.store.opening import open_store
from perdure.store.shapes import Command, RunDump, RunFilter
from perdure.store.sqlite import archive as sqlite_archive
from perdure.testing.proxy import StoreProxy
from tests.engine.damage import Damage
from tests.engine.engines import assert_whole
from tests.engine.rows import rows_of

AT_ONCE = timedelta(0)


@node
async def archived_text(n: int) -> str:
    return "x" * n


@workflow
def archived_flow(n: int) -> str:
    return archived_text(n)


@workflow
def archived_question() -> bool:
    return ask("Shall it end?", schema=bool)


@pytest.fixture
def engine_here(store_url: str, tmp_path: Path) -> Callable[..., Engine]:
    def opened(**settings: Any) -> Engine:
        settings = {"inline_max_bytes": 1_000, "archive_folder": str(tmp_path / "archive")} | settings
        blobs = (tmp_path / "blobs").as_uri()
        return Engine(store_url, blobs=blobs, settings=EngineSettings(**settings))

    return opened


async def ended(engine: Engine, run_id: str, n: int = 10) -> Run[str]:
    run = await engine.start(archived_flow, n=n, run_id=run_id, tags=["old"])
    await run.result()
    return run


async def dump(store: Store, run_id: str) -> RunDump:
    found = await store.dump_run(RunId(run_id))
    assert found is not None
    return found


def size_of(path: str) -> int:
    return os.path.getsize(path)


def pages_unused(url: str) -> int:
    """Return how many pages of a file are kept for nothing; PostgreSQL sees to that itself."""
    if not url.startswith("sqlite"):
        return 0
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    unused = int(connection.pragma("freelist_count"))
    connection.close()
    return unused


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


async def test_runs_that_have_ended_leave_the_database(
    engine_here: Callable[..., Engine], store_url: str, tmp_path: Path
):
    async with engine_here() as engine:
        asking = await engine.start(archived_question, run_id="asking")
        for name, n in (("small", 10), ("large", 5_000)):
            await ended(engine, name, n)
        before = {name: await dump(engine.store, name) for name in ("small", "large")}
        assert (await engine.archive(dry_run=True)).runs == 0, "they are too young"
        assert (await engine.archive(older_than=AT_ONCE, dry_run=True)).runs == 2
        assert await rows_of(store_url, "small")

        done = await engine.archive(older_than=AT_ONCE)

        assert (done.runs, done.files, done.skipped) == (2, 1, ())
        assert [run.run_id for run in await engine.list()] == ["asking"]
        assert [archived.run_id for archived in await engine.archives()] == ["large", "small"]
        assert await rows_of(store_url, "small") == await rows_of(store_url, "large") == {}
        assert len(files_in(tmp_path / "archive")) == 1
        for archived in await engine.archives():
            async with opened_archive(tmp_path / "archive", archived, clock=SystemClock()) as store:
                assert await dump(store, archived.run_id) == before[archived.run_id]
                assert await verify_run(store, archived.run_id) == []
        await assert_whole(engine, asking)
        await asking.cancel()


async def test_an_archived_run_comes_back_as_it_was(engine_here: Callable[..., Engine], store_url: str, tmp_path: Path):
    async with engine_here() as engine:
        for name in ("one", "two"):
            await ended(engine, name, 5_000)
        before = await dump(engine.store, "one")
        (use,) = before.blobs
        await engine.archive(older_than=AT_ONCE)
        assert await engine.store.used_blobs([use.digest]) == set()
        await engine.values.blobs.delete(use.digest)

        run = await engine.unarchive("one")

        assert await dump(engine.store, "one") == before
        assert await run.result() == "x" * 5_000
        await assert_whole(engine, run)
        assert await engine.store.used_blobs([use.digest]) == {use.digest}
        assert len(files_in(tmp_path / "archive")) == 1, "the other one is in it"
        assert (await engine.unarchive("one")).run_id == "one"
        await engine.unarchive("two")
        assert files_in(tmp_path / "archive") == []
        with pytest.raises(RunNotFound):
            await engine.unarchive("three")


async def test_the_id_of_an_archived_run_stays_taken(engine_here: Callable[..., Engine], tmp_path: Path):
    async with engine_here() as engine:
        run = await ended(engine, "taken")
        await run.export(tmp_path / "taken.bundle")
        await engine.archive(older_than=AT_ONCE)
        with pytest.raises(RunArchived):
            await engine.get("taken")
        with pytest.raises(RunArchived):
            await engine.start(archived_flow, n=10, run_id="taken")
        with pytest.raises(RunArchived):
            await engine.import_run(tmp_path / "taken.bundle")
        with pytest.raises(RunArchived):
            await run.retry()
        assert await engine.list() == []


TOLD: dict[str, Callable[[Run[Any]], Awaitable[Any]]] = {
    "cancel": lambda run: run.cancel(),
    "pause": lambda run: run.pause(),
    "resume": lambda run: run.resume(),
    "resume_node": lambda run: run.resume("archived_text"),
    "signal": lambda run: run.signal("go"),
    "answer": lambda run: run.answer("q", 1),
    "questions": lambda run: run.questions(),
    "resolve": lambda run: run.resolve("archived_text", "retry"),
    "send": lambda run: run.send("n", 1),
    "stop": lambda run: run.stop(),
    "retry": lambda run: run.retry(),
    "jump": lambda run: run.jump("archived_text"),
    "promote": lambda run: run.promote(1),
    "restore": lambda run: run.restore(2),
    "at": lambda run: run.at(2),
    "at_end_of": lambda run: run.at_end_of(1),
    "fork": lambda run: run.fork(),
    "checkpoint": lambda run: run.checkpoint("here"),
    "checkpoints": lambda run: run.checkpoints(),
    "branches": lambda run: run.branches(),
    "tag": lambda run: run.tag("new"),
    "delete": lambda run: run.delete(),
    "doctor": lambda run: run.doctor(),
    "result": lambda run: run.result(),
}


@pytest.mark.parametrize("what", TOLD)
async def test_who_tells_an_archived_run_something_is_told_how_to_bring_it_back(
    engine_here: Callable[..., Engine], what: str
):
    async with engine_here() as engine:
        await ended(engine, "old")
        await engine.archive(older_than=AT_ONCE)

        with pytest.raises(RunArchived, match="perdure archive --restore old"):
            await TOLD[what](Run(engine, RunId("old")))


async def test_who_tells_a_run_something_that_is_archived_in_this_moment_is_told_so(
    engine_here: Callable[..., Engine], store_url: str, tmp_path: Path
):
    """A run that may be archived has ended, and is told nothing but to go on; it may have been looked at before it ended."""

    class Stale(StoreProxy):
        async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
            if name == "add_command":
                await archiving.archive(older_than=AT_ONCE)
            return await call()

    async with engine_here() as archiving:
        await ended(archiving, "old")
        inner = await open_store(store_url)
        async with Engine(Stale(inner).as_store, recover=False) as engine:
            with pytest.raises(RunArchived):
                await (await engine.get("old")).jump("archived_text")
        await inner.close()


async def test_a_file_that_is_gone_or_damaged_is_named(engine_here: Callable[..., Engine], tmp_path: Path):
    async with engine_here() as engine:
        await ended(engine, "lost")
        await engine.archive(older_than=AT_ONCE)
        (path,) = files_in(tmp_path / "archive")
        content = path.read_bytes()
        path.write_bytes(content[:-20] + bytes(20))
        with pytest.raises(BundleError):
            await engine.unarchive("lost")
        path.unlink()
        with pytest.raises(ArchiveMissing, match=path.name):
            await engine.unarchive("lost")
        path.write_bytes(content)
        assert (await (await engine.unarchive("lost")).result()) == "x" * 10


class Overtaken(StoreProxy):
    """Has somebody else do something between two calls, once."""

    def __init__(self, inner: Store, call: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._call = call
        self._meanwhile: list[Callable[[], Awaitable[None]]] = [meanwhile]

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        found = await call() if name == "load_archive" else None
        if name == self._call and self._meanwhile:
            await self._meanwhile.pop()()
        return found if name == "load_archive" else await call()


@pytest.mark.parametrize("call", ["load_archive", "write_run"])
async def test_a_run_that_came_back_and_left_again_meanwhile_comes_back_as_it_is(
    engine_here: Callable[..., Engine], tmp_path: Path, call: str
):
    async with engine_here() as engine:
        await ended(engine, "twice")
        await engine.archive(older_than=AT_ONCE)

        async def go_on() -> None:
            run = await engine.unarchive("twice")
            await run.jump("archived_text")
            await run.result()
            await engine.archive(older_than=AT_ONCE)

        store = Overtaken(engine.store, call, go_on).as_store
        folder = tmp_path / "archive"
        await restore(
            store, engine.values.blobs, folder, RunId("twice"), project_id=DEFAULT_PROJECT, clock=SystemClock()
        )

        run = await engine.get("twice")
        assert (await run.state()).branch_id == 2
        assert await engine.archives() == []
        assert files_in(folder) == []
        await assert_whole(engine, run)


async def test_a_run_that_leaves_while_somebody_brings_it_back_comes_back(
    engine_here: Callable[..., Engine], tmp_path: Path
):
    async with engine_here() as engine:
        await ended(engine, "leaving")

        async def leave() -> None:
            await engine.archive(older_than=AT_ONCE)

        store = Overtaken(engine.store, "load_archive", leave).as_store
        folder = tmp_path / "archive"
        await restore(
            store, engine.values.blobs, folder, RunId("leaving"), project_id=DEFAULT_PROJECT, clock=SystemClock()
        )

        assert await engine.store.load_state(RunId("leaving")) is not None
        assert await engine.archives() == []


class Followed(StoreProxy):
    """Has somebody else do something after the first call of a method."""

    def __init__(self, inner: Store, **then: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(inner)
        self._then = then

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        found = await call()
        if (then := self._then.pop(name, None)) is not None:
            await then()
        return found


@pytest.mark.parametrize(
    ("call", "look"),
    [
        ("load_run", lambda store: load_run(store, RunId("coming"))),
        ("load_run", lambda store: find_run(store, "coming")),
        ("load_run", lambda store: find_run(store, "com")),
        ("load_state", lambda store: compact_run(store, RunId("coming"))),
    ],
)
async def test_a_run_that_comes_back_while_somebody_looks_for_it_is_found(
    engine_here: Callable[..., Engine], call: str, look: Callable[[Store], Awaitable[Any]]
):
    async with engine_here() as engine:
        await ended(engine, "coming")
        await engine.archive(older_than=AT_ONCE)

        assert await look(Followed(engine.store, **{call: lambda: engine.unarchive("coming")}).as_store)


async def test_a_run_that_leaves_and_comes_back_while_somebody_brings_it_back_is_there(
    engine_here: Callable[..., Engine], tmp_path: Path
):
    async with engine_here() as engine:
        await ended(engine, "restless")
        store = Followed(
            engine.store,
            load_archive=lambda: engine.archive(older_than=AT_ONCE),
            load_state=lambda: engine.unarchive("restless"),
        ).as_store
        folder = tmp_path / "archive"

        await restore(
            store, engine.values.blobs, folder, RunId("restless"), project_id=DEFAULT_PROJECT, clock=SystemClock()
        )

        assert await engine.store.load_state(RunId("restless")) is not None


async def test_a_run_that_leaves_while_it_is_imported_again_is_no_other_run(
    engine_here: Callable[..., Engine], tmp_path: Path
):
    async with engine_here() as engine:
        run = await ended(engine, "leaving")
        path = tmp_path / "leaving.bundle"
        await run.export(path)
        store = Followed(engine.store, load_state=lambda: engine.archive(older_than=AT_ONCE)).as_store

        with pytest.raises(RunArchived):
            await import_file(store, engine.values.blobs, path, project_id=DEFAULT_PROJECT, clock=SystemClock())


async def test_one_process_at_a_time_archives(engine_here: Callable[..., Engine], tmp_path: Path):
    async with engine_here() as engine:
        await ended(engine, "one")
        entered, left = asyncio.Event(), asyncio.Event()

        class Held(StoreProxy):
            async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
                if name == "archive_runs":
                    entered.set()
                    await left.wait()
                return await call()

        slow = Archiver(
            Held(engine.store).as_store, engine.values.blobs, tmp_path / "archive", SystemClock(), rest=0
        ).archive(older_than=AT_ONCE, limit=None, dry_run=False)
        async with asyncio.TaskGroup() as group:
            archiving = group.create_task(slow)
            await entered.wait()
            with pytest.raises(StoreLocked):
                await engine.archive(older_than=AT_ONCE)
            left.set()
        assert archiving.result().runs == 1


class Stop(Exception):
    """The process is gone."""


class Stopping(StoreProxy):
    """Stops before or after the n-th call of a method."""

    def __init__(self, inner: Store, name: str, when: str, number: int) -> None:
        super().__init__(inner)
        self.name, self.when, self.left = name, when, number

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        self.left -= name == self.name
        if self.left or name != self.name:
            return await call()
        if self.when == "after":
            await call()
        raise Stop

    async def read_runs(self, run_ids: Any) -> AsyncIterator[Any]:
        async for page in self.inner.read_runs(run_ids):
            yield page
        if self.name == "read_runs":
            raise Stop


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[BlobStore]:
    opened = open_blobs((tmp_path / "blobs").as_uri())
    yield opened
    await opened.close()


@pytest.mark.parametrize(
    ("name", "when", "number"),
    [
        ("read_runs", "after", 1),
        *(("archive_runs", when, number) for when in ("before", "after") for number in (1, 2)),
        *(("remove_leftovers", "after", number) for number in (2, 4, 9)),
        ("give_back", "before", 1),
    ],
)
@pytest.mark.parametrize("is_large", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["small", "large"])
async def test_whoever_is_stopped_loses_nothing_and_goes_on(
    engine_here: Callable[..., Engine],
    store_url: str,
    tmp_path: Path,
    blobs: BlobStore,
    name: str,
    when: str,
    number: int,
    is_large: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    if is_large:
        monkeypatch.setattr(sqlite_archive, "FEW_EVENTS", 3)
        monkeypatch.setattr("perdure.engine.keeping.archiving.ROWS_AT_ONCE", 3)
    monkeypatch.setattr("perdure.engine.keeping.archiving.RUNS_AT_ONCE", 2)
    names = [f"run-{number}" for number in range(5)]
    async with engine_here() as engine:
        for each in names:
            await ended(engine, each, 2_000)
        before = {each: await dump(engine.store, each) for each in names}
    store = await open_store(store_url)
    folder = tmp_path / "archive"
    archiver = Archiver(Stopping(store, name, when, number).as_store, blobs, folder, SystemClock(), rest=0)
    with suppress(Stop):  # what one database has done at once, another has to do often
        await archiver.archive(older_than=AT_ONCE, limit=None, dry_run=False)

    for each in names:
        archived = await store.load_archive(RunId(each))
        if archived is None:
            assert await dump(store, each) == before[each]
        else:
            assert await store.load_state(RunId(each)) is None
            async with opened_archive(folder, archived, clock=SystemClock()) as there:
                assert await dump(there, each) == before[each]

    again = Archiver(store, blobs, folder, SystemClock(), rest=0)
    await again.archive(older_than=AT_ONCE, limit=None, dry_run=False)

    assert sorted(run.run_id for run in await store.list_archives(id_prefix=None, before=None, limit=9)) == names
    assert {each: await rows_of(store_url, each) for each in names} == {each: {} for each in names}
    assert {path.name for path in files_in(folder)} == await store.archive_files()
    for archived in await store.list_archives(id_prefix=None, before=None, limit=9):
        async with opened_archive(folder, archived, clock=SystemClock()) as there:
            assert await dump(there, archived.run_id) == before[archived.run_id]
            assert await verify_run(there, archived.run_id) == []
    await store.close()


async def test_a_run_that_somebody_wants_back_meanwhile_stays(
    engine_here: Callable[..., Engine], store_url: str, tmp_path: Path, blobs: BlobStore
):
    async with engine_here() as engine:
        for name in ("wanted", "not-wanted"):
            await ended(engine, name)
    store = await open_store(store_url)

    class Late(StoreProxy):
        async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
            if name == "archive_runs":
                command = Command(command_id=CommandId("again"), run_id=RunId("wanted"), kind="jump")
                await self.inner.add_command(command)
            return await call()

    archiver = Archiver(Late(store).as_store, blobs, tmp_path / "archive", SystemClock(), rest=0)
    done = await archiver.archive(older_than=AT_ONCE, limit=None, dry_run=False)

    assert done.runs == 1
    assert await store.load_state(RunId("wanted")) is not None
    assert await store.load_archive(RunId("wanted")) is None
    assert await store.find_archivable(ended_before=2**62, after=None, limit=9) == []
    await store.close()


async def test_a_run_whose_blobs_are_gone_stays_and_holds_up_no_other(
    engine_here: Callable[..., Engine], tmp_path: Path
):
    async with engine_here() as engine:
        await ended(engine, "first")
        bad = await ended(engine, "bad", 5_000)
        await ended(engine, "last")
        (use,) = (await dump(engine.store, "bad")).blobs
        await engine.values.blobs.delete(use.digest)

        done = await engine.archive(older_than=AT_ONCE)

        assert (done.runs, done.skipped) == (2, ("bad",))
        assert await bad.status() == "completed"
        for name in ("first", "last"):
            assert await (await engine.unarchive(name)).result() == "x" * 10


@pytest.mark.parametrize("content", [b"not compressed", zlib.compress(b"[[1")], ids=["unreadable", "cut off"])
async def test_a_run_whose_log_is_damaged_stays_and_holds_up_no_other(
    engine_here: Callable[..., Engine], store_url: str, caplog: pytest.LogCaptureFixture, content: bytes
):
    async with engine_here() as engine:
        for number in range(3):
            await ended(engine, f"run-{number}")
        assert await engine.store.compact_log(RunId("run-1"), through=Seq(3), most=3) == 3
        await Damage(store_url).execute("UPDATE run_log_segments SET events = ? WHERE run_id = 'run-1'", content)

        done = await engine.archive(older_than=AT_ONCE)

        assert (done.runs, done.skipped) == (2, (RunId("run-1"),))
        assert [run.run_id for run in await engine.list()] == ["run-1"]
        warned = [record for record in caplog.records if record.getMessage() == "run_not_archived"]
        assert [getattr(record, "run_id", None) for record in warned] == ["run-1"]
        assert {archived.run_id for archived in await engine.archives()} == {"run-0", "run-2"}


async def test_a_foreign_file_in_the_folder_stays(engine_here: Callable[..., Engine], tmp_path: Path):
    async with engine_here() as engine:
        await ended(engine, "ours")
        await engine.archive(older_than=AT_ONCE)
        (path,) = files_in(tmp_path / "archive")
        foreign = path.with_name("foreign.runs")
        foreign.write_bytes(path.read_bytes())
        path.with_name("nonsense.runs").write_bytes(b"nonsense")
        path.with_name("half.part").write_bytes(b"half")

        await engine.archive(older_than=AT_ONCE)

        kept = {found.name for found in files_in(tmp_path / "archive")}
        assert kept == {path.name, "foreign.runs", "nonsense.runs"}


async def test_a_run_that_is_larger_than_a_bundle_may_be_comes_back(
    engine_here: Callable[..., Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def smaller(file: BinaryIO, place: str, *, most_bytes: int = MOST_BYTES) -> BundleReader:
        """Reads as if no more than 1,000 bytes were taken from strangers."""
        return BundleReader(file, place, most_bytes=most_bytes * 1_000 // MOST_BYTES)

    monkeypatch.setattr("perdure.engine.keeping.importing.BundleReader", smaller)
    async with engine_here() as engine:
        run = await ended(engine, "huge", 5_000)
        await run.export(tmp_path / "huge.bundle")
        await engine.archive(older_than=AT_ONCE)
        assert await (await engine.unarchive("huge")).result() == "x" * 5_000
        with pytest.raises(BundleTooLarge):
            await engine.import_run(tmp_path / "huge.bundle", run_id="copy")


async def test_a_full_disk_is_named_and_gets_its_room_back(
    engine_here: Callable[..., Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(file: BinaryIO) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with engine_here() as engine:
        await ended(engine, "one")
        with monkeypatch.context() as patched:
            patched.setattr("perdure.engine.keeping.archiving.sync_file", full)
            with pytest.raises(StoreFull, match="archive"):
                await engine.archive(older_than=AT_ONCE)
        assert files_in(tmp_path / "archive") == []
        assert (await engine.archive(older_than=AT_ONCE)).runs == 1


async def test_databases_that_know_the_same_run_share_a_folder(store_url: str, tmp_path: Path):
    settings = EngineSettings(archive_folder=str(tmp_path / "archive"))
    async with Engine(store_url, settings=settings) as one, Engine(store_url, project="b", settings=settings) as other:
        await (await ended(one, "twin")).export(tmp_path / "twin.bundle")
        await other.import_run(tmp_path / "twin.bundle")
        assert (await other.archive(older_than=AT_ONCE)).runs == 1

        assert (await one.archive(older_than=AT_ONCE)).runs == 1

        assert await (await one.unarchive("twin")).result() == "x" * 10
        assert await (await other.unarchive("twin")).result() == "x" * 10


async def test_a_file_stays_that_tells_more_of_a_run_than_the_database(
    engine_here: Callable[..., Engine], store_url: str, tmp_path: Path
):
    folder = tmp_path / "archive"
    async with engine_here() as engine:
        run = await ended(engine, "longer")
        await run.export(tmp_path / "earlier.bundle")
        await run.jump("archived_text")
        await run.result()
        await engine.archive(older_than=AT_ONCE)
        (path,) = files_in(folder)
        content = path.read_bytes()
    earlier = f"{store_url}-earlier" if store_url.startswith("sqlite") else store_url
    project = "default" if store_url.startswith("sqlite") else "earlier"
    settings = EngineSettings(archive_folder=str(folder))
    async with Engine(earlier, project=project, settings=settings) as restored:
        await ended(restored, "other")
        await restored.archive(older_than=AT_ONCE)
        (name,) = {found.name for found in files_in(folder)} - {path.name}
        await restored.import_run(tmp_path / "earlier.bundle")
        left = path.with_name(name[:13] + "left.runs")
        left.write_bytes(content)

        await restored.archive(older_than=timedelta(days=1))

        assert left.read_bytes() == content


async def test_a_file_is_not_removed_while_runs_are_recorded_in_it(
    engine_here: Callable[..., Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("perdure.engine.keeping.archiving.RUNS_AT_ONCE", 1)
    async with engine_here() as engine:
        for name in ("one", "two"):
            await ended(engine, name)

        class Restoring(StoreProxy):
            """Has the first run back before the second one is recorded."""

            async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
                if name == "archive_runs" and await self.inner.load_archive(RunId("one")) is not None:
                    await engine.unarchive("one")
                return await call()

        archiver = Archiver(
            Restoring(engine.store).as_store, engine.values.blobs, tmp_path / "archive", SystemClock(), rest=0
        )
        await archiver.archive(older_than=AT_ONCE, limit=None, dry_run=False)

        assert [archived.run_id for archived in await engine.archives()] == ["two"]
        assert await (await engine.unarchive("two")).result() == "x" * 10
        assert files_in(tmp_path / "archive") == []


async def test_an_engine_archives_by_itself_if_that_is_wanted(engine_here: Callable[..., Engine]):
    async with engine_here(archive_after_days=0.0, archive_every_seconds=0.05) as engine:
        await ended(engine, "by-itself")
        async with asyncio.timeout(30):
            while not await engine.archives():
                await asyncio.sleep(0.05)
        assert await engine.list() == []


async def test_the_file_of_a_database_shrinks(sqlite_url: str, tmp_path: Path):
    path = sqlite_url.removeprefix("sqlite:///")
    async with Engine(sqlite_url, settings=EngineSettings(archive_folder=str(tmp_path / "archive"))) as engine:
        for number in range(60):
            await ended(engine, f"run-{number}", 100_000)
        before = size_of(path)

        await engine.archive(older_than=AT_ONCE)

    assert before > 10_000_000
    assert size_of(path) < before / 4


@workflow
def archived_chain(x: int) -> str:
    for _ in range(8):
        x = archived_number(x)
    return archived_text(x)


@node
async def archived_number(x: int) -> int:
    return x + 1


async def seconds_of_runs(engine: Engine, until: asyncio.Event, name: str) -> list[float]:
    """Drive runs one after the other, and return how long each took."""
    took: list[float] = []
    while not until.is_set():
        began = time.perf_counter()
        run = await engine.start(archived_chain, x=len(took) % 10, run_id=f"{name}-{len(took)}")
        await run.result()
        took.append(time.perf_counter() - began)
    return sorted(took)


async def wrong_in_database(engine: Engine) -> dict[str, list[Violation]]:
    """Verify every run of the database, and return what is wrong with those with which something is."""
    found: dict[str, list[Violation]] = {}
    before: tuple[int, str] | None = None
    while page := await engine.store.list_runs(RunFilter(), before=before, limit=500):
        for run in page:
            if violations := await verify_run(engine, run.run_id):
                found[run.run_id] = violations
        before = (page[-1].created_at, page[-1].run_id)
    return found


async def wrong_in_archive(store: Store, folder: Path, *, least: int) -> dict[str, list[Violation]]:
    """As `wrong_in_database`, for the archive, which holds so many."""
    found = {run.run_id: await verify_archived(folder, run) async for run in all_archived(store)}
    assert len(found) >= least
    return {run_id: violations for run_id, violations in found.items() if violations}


async def archive_beside_runs(url: str, folder: Path, runs: int) -> tuple[float, float]:
    """Archive so many runs while others go on, and verify everything before and after. Return how much slower the others were,
    as the median and for nine of ten."""
    settings = EngineSettings(archive_folder=str(folder / "archive"))
    async with Engine(url, settings=settings) as engine:
        for start in range(0, runs, 500):
            async with asyncio.TaskGroup() as group:
                for number in range(start, min(start + 500, runs)):
                    group.create_task(ended(engine, f"old-{number:06}"))
        assert await wrong_in_database(engine) == {}
        alone = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            quiet = group.create_task(seconds_of_runs(engine, alone, "alone"))
            await asyncio.sleep(2)
            alone.set()
        cutoff = SystemClock().now_micros()
        await asyncio.sleep(0.01)
        done = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(seconds_of_runs(engine, done, "beside"))
            age = timedelta(microseconds=SystemClock().now_micros() - cutoff)
            found = await engine.archive(older_than=age)
            done.set()
        assert found.runs >= runs
        assert await wrong_in_archive(engine.store, folder / "archive", least=runs) == {}
        one = await engine.unarchive("old-000007")
        assert await one.result() == "x" * 10
        assert await wrong_in_database(engine) == {}
        slow, fast = beside.result(), quiet.result()
        assert len(slow) > 3
        return slow[len(slow) // 2] / fast[len(fast) // 2], slow[len(slow) * 9 // 10] / fast[len(fast) * 9 // 10]


@pytest.mark.slow
async def test_a_thousand_runs_are_archived_beside_others(store_url: str, tmp_path: Path):
    median, most = await archive_beside_runs(store_url, tmp_path, 1_000)

    # What is promised is less than two, and shown below: here the machine is busy with other tests.
    assert median < 10, f"the others were {median:.2f} times slower, nine of ten at most {most:.2f} times"
    assert pages_unused(store_url) < 1_000


@pytest.mark.soak
@pytest.mark.timeout(3_000)
async def test_a_hundred_thousand_runs_are_archived_beside_others(store_url: str, tmp_path: Path):
    median, most = await archive_beside_runs(store_url, tmp_path, 100_000)

    assert (median < 2, most < 2) == (True, True), f"{median:.2f} and {most:.2f} times slower"
    assert pages_unused(store_url) < 1_000
