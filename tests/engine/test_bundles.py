"""A run leaves its database whole and goes on in another one. What is no whole run is refused before anything is kept."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure import Context, Engine, EngineSettings, ask, collect, node, workflow
from perdure.clock import SystemClock
from perdure.engine.keeping.exporting import export_run
from perdure.engine.runs.run import Run
from perdure.errors import BundleDamaged, BundleError, BundleTooLarge, BundleTooNew, ImportConflict, RunNotFound
from perdure.journal import events as e
from perdure.journal.states import NodeState, RunStatus
from perdure.store.blobs import open_blobs
from perdure.store.bundles import BundledBlob, BundleReader, BundleWriter
from perdure.store.opening import open_store
from perdure.store.shapes import WorkflowVersion
from perdure.store.transitions import Committed
from tests.engine.engines import assert_whole, log_of
from tests.store.builders import save_workflow, started

ran: Counter[str] = Counter()
gates: dict[str, asyncio.Event] = {}
SETTINGS = EngineSettings(recovery_seconds=0.2, poll_seconds=0.2, hibernate_after=0.0, inline_max_bytes=1_000)


@pytest.fixture(autouse=True)
def nothing_so_far() -> None:
    ran.clear()
    gates.clear()


@pytest.fixture
def elsewhere(request: pytest.FixtureRequest, store_url: str, tmp_path: Path) -> str:
    """The URL of a store of the other kind."""
    return request.getfixturevalue("postgres_url" if store_url.startswith("sqlite") else "sqlite_url")


def engine_at(url: str, tmp_path: Path, name: str) -> Engine:
    return Engine(url, blobs=(tmp_path / f"{name}-blobs").as_uri(), settings=SETTINGS)


@node
async def bundle_numbers(ctx: Context, n: int) -> AsyncIterator[int]:
    ran[ctx.node_id] += 1
    for number in range(n):
        yield number


@node
async def bundle_double(ctx: Context, x: int) -> int:
    ran["double"] += 1
    if x == 3 and "double" in gates:
        await gates["double"].wait()
    return x * 2


@node
async def bundle_text(ctx: Context, xs: list[int]) -> str:
    ran[ctx.node_id] += 1
    first = await ctx.step(lambda: 7)
    ctx.log.info("made a text", first=first)
    return "x" * 5_000


@node
async def bundle_end(ctx: Context, text: str, ok: bool) -> int:
    ran[ctx.node_id] += 1
    return len(text) if ok else 0


@workflow
def bundle_flow(n: int) -> int:
    text = bundle_text(collect(bundle_double.map(bundle_numbers(n))))
    return bundle_end(text, ask("Is it right?", schema=bool, show=text))


async def until_asked(run: Run[Any]) -> str:
    while not (questions := await run.questions()):
        await asyncio.sleep(0.01)
    return questions[0].interaction_id


async def at_rest(run: Run[Any]) -> None:
    while await run.status() not in (RunStatus.PAUSED, RunStatus.AWAITING_INPUT):
        await asyncio.sleep(0.01)


async def test_a_run_that_has_ended_is_the_same_elsewhere(store_url: str, elsewhere: str, tmp_path: Path):
    async with engine_at(store_url, tmp_path, "here") as here:
        run = await here.start(bundle_flow, n=5, run_id="whole")
        question = await until_asked(run)
        await run.checkpoint("asked")
        await run.signal("unheard", {"of": 1})
        await run.answer(question, True)
        assert await run.result() == 5_000
        while not await here.store.load_logs(run.run_id, after=0, limit=1):
            await asyncio.sleep(0.01)  # they are written a moment after what they tell of
        exported = await run.export(tmp_path / "whole.bundle")
        log, checkpoints = await log_of(run), await run.checkpoints()
        dump = await here.store.dump_run(run.run_id)
        lines = await here.store.load_logs(run.run_id, after=0, limit=100)

    async with engine_at(elsewhere, tmp_path, "there") as there:
        twin = await there.import_run(exported.path)
        assert await log_of(twin) == log
        assert await twin.checkpoints() == checkpoints
        assert await there.store.dump_run(twin.run_id) == dump
        assert [line for _, line in await there.store.load_logs(twin.run_id, after=0, limit=100)] == [
            line for _, line in lines
        ]
        assert await twin.result() == 5_000
        await assert_whole(there, twin)
    assert exported.blobs == len(dump.blobs if dump else ()) > 0
    assert names_in(tmp_path) == ["whole.bundle"]


async def test_a_run_that_waits_goes_on_elsewhere_and_back(store_url: str, elsewhere: str, tmp_path: Path):
    async with engine_at(store_url, tmp_path, "here") as here:
        run = await here.start(bundle_flow, n=5, run_id="travels")
        await until_asked(run)
        await at_rest(run)
        await run.export(tmp_path / "one.bundle")

    async with engine_at(elsewhere, tmp_path, "there") as there:
        twin = await there.import_run(tmp_path / "one.bundle")
        await at_rest(twin)
        await twin.resume()
        await twin.answer(await until_asked(twin), True)
        assert await twin.result() == 5_000
        await assert_whole(there, twin)
        await twin.export(tmp_path / "two.bundle")

    async with engine_at(store_url, tmp_path, "here") as here:
        with pytest.raises(ImportConflict, match="not come as far"):
            await here.import_run(tmp_path / "two.bundle")
        back = await here.import_run(tmp_path / "two.bundle", run_id="back")
        assert await back.result() == 5_000
        await assert_whole(here, back)
    assert ran == {"bundle_numbers": 1, "double": 5, "bundle_text": 1, "bundle_end": 1}


async def test_a_run_that_moves_is_exported_as_it_is_at_one_moment(store_url: str, elsewhere: str, tmp_path: Path):
    gates["double"] = asyncio.Event()
    async with engine_at(store_url, tmp_path, "here") as here:
        run = await here.start(bundle_flow, n=50, run_id="moves")
        while ran["double"] < 4:
            await asyncio.sleep(0.01)
        await run.export(tmp_path / "moving.bundle")

        async with engine_at(elsewhere, tmp_path, "there") as there:
            twin = await there.import_run(tmp_path / "moving.bundle")
            stored = await there.store.load_run(twin.run_id)
            assert stored is not None
            assert stored.run.status is RunStatus.RUNNING
            calls = ran["double"]
            while await twin.status() is not RunStatus.PAUSED:
                await asyncio.sleep(0.01)
            assert ran["double"] == calls, "nothing is called before somebody says so"
            await assert_whole(there, twin)
            gates["double"].set()
            await twin.resume()
            await twin.answer(await until_asked(twin), True)
            assert await twin.result() == 5_000
            await assert_whole(there, twin)

        await run.answer(await until_asked(run), True)
        assert await run.result() == 5_000


async def test_nobody_owns_a_run_that_was_imported(store_url: str, elsewhere: str, tmp_path: Path):
    gates["double"] = asyncio.Event()
    async with engine_at(store_url, tmp_path, "here") as here:
        run = await here.start(bundle_flow, n=5, run_id="owned")
        while ran["double"] < 4:
            await asyncio.sleep(0.01)
        await run.export(tmp_path / "owned.bundle")
        gates["double"].set()
    async with Engine(elsewhere, blobs=(tmp_path / "there").as_uri(), recover=False) as there:
        twin = await there.import_run(tmp_path / "owned.bundle", paused=False)
        stored = await there.store.load_run(twin.run_id)
    assert stored is not None
    assert stored.owner is None
    assert [command.kind for command in stored.commands] == []


async def test_importing_twice_is_importing_once(store_url: str, tmp_path: Path):
    async with engine_at(store_url, tmp_path, "here") as here:
        run = await here.start(bundle_flow, n=2, run_id="twice")
        await until_asked(run)
        await at_rest(run)
        await run.export(tmp_path / "asked.bundle")
        assert (await here.import_run(tmp_path / "asked.bundle")).run_id == "twice"
        await run.answer(await until_asked(run), True)
        await run.result()
        log = await log_of(run)

        await here.import_run(tmp_path / "asked.bundle")

        assert await log_of(run) == log
        other = await here.start(bundle_flow, n=3, run_id="other")
        await until_asked(other)
        with pytest.raises(ImportConflict, match="another run"):
            await here.import_run(tmp_path / "asked.bundle", run_id="other")
        await other.cancel()


async def test_a_copy_has_questions_of_its_own(store_url: str, tmp_path: Path):
    async with engine_at(store_url, tmp_path, "here") as here:
        run = await here.start(bundle_flow, n=2, run_id="a/b")
        original = await until_asked(run)
        await at_rest(run)
        await run.export(tmp_path / "original.bundle")

        copy = await here.import_run(tmp_path / "original.bundle", run_id="copy", paused=False)
        copied = await until_asked(copy)
        assert (original, copied) == ("a%2Fb/ask/1", "copy/ask/1")
        await copy.answer(copied, False)
        assert await copy.result() == 0
        await assert_whole(here, copy, run)
        assert [question.interaction_id for question in await run.questions()] == [original]
        await run.answer(original, True)
        assert await run.result() == 5_000


async def test_a_version_gets_another_number_where_its_own_is_taken(store_url: str, elsewhere: str, tmp_path: Path):
    async with engine_at(store_url, tmp_path, "here") as here:
        run = await here.start(bundle_flow, n=2, run_id="numbered")
        await run.answer(await until_asked(run), True)
        await run.result()
        await run.export(tmp_path / "numbered.bundle")
    store = await open_store(elsewhere)
    for other in ("a", "b"):
        await store.save_version("bundle_flow", other, b"{}", {}, at=1)
    await store.close()

    async with engine_at(elsewhere, tmp_path, "there") as there:
        twin = await there.import_run(tmp_path / "numbered.bundle")
        assert (await twin.state()).version == 3
        await assert_whole(there, twin)
        assert await twin.result() == 5_000


async def test_what_an_alias_meant_is_numbered_as_the_version_is(store_url: str, elsewhere: str, tmp_path: Path):
    async with engine_at(store_url, tmp_path, "here") as here:
        await here.save(bundle_flow)
        run = await here.start("bundle_flow@latest", n=2, run_id="by-alias")
        await run.answer(await until_asked(run), True)
        await run.result()
        await run.export(tmp_path / "by-alias.bundle")
    store = await open_store(elsewhere)
    await store.save_version("bundle_flow", "another", b"{}", {}, at=1)
    await store.close()

    async with engine_at(elsewhere, tmp_path, "there") as there:
        twin = await there.import_run(tmp_path / "by-alias.bundle")
        (resolved,) = [entry.event for entry in await log_of(twin) if isinstance(entry.event, e.VersionResolved)]
        assert (resolved.version, (await twin.state()).version) == (2, 2)
        await assert_whole(there, twin)


async def test_a_run_that_is_not_there_leaves_no_file(store_url: str, tmp_path: Path):
    async with engine_at(store_url, tmp_path, "here") as here:
        with pytest.raises(RunNotFound):
            await here.export("nothing", tmp_path / "nothing.bundle")
    assert names_in(tmp_path) == []


@pytest.fixture
async def bundle(tmp_path: Path) -> Path:
    """A run with a blob, in a file."""
    async with engine_at(f"sqlite:///{tmp_path / 'source.db'}", tmp_path, "source") as here:
        run = await here.start(bundle_flow, n=3, run_id="small")
        await run.answer(await until_asked(run), True)
        await run.result()
        await run.export(tmp_path / "small.bundle")
    return tmp_path / "small.bundle"


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def names_in(folder: Path) -> list[str]:
    """Return the files in a folder that have to do with bundles."""
    return [path.name for path in folder.iterdir() if "bundle" in path.name]


async def imported(path: Path, **options: Any) -> list[str]:
    """Import a file into an empty store, and return the runs that are there then."""
    async with Engine(f"sqlite:///{path.parent / 'target.db'}", recover=False) as engine:
        try:
            await engine.import_run(path, **options)
        finally:
            found = [run.run_id for run in await engine.list()]
    return found


async def test_a_file_that_is_cut_off_is_refused(bundle: Path, tmp_path: Path):
    content = content_of(bundle)
    cut = tmp_path / "cut.bundle"
    for size in {0, 1, 19, 20, 25, len(content) // 2, len(content) - 1}:
        cut.write_bytes(content[:size])
        with pytest.raises(BundleDamaged):
            await imported(cut)


async def test_a_file_that_goes_on_behind_its_end_is_refused(bundle: Path, tmp_path: Path):
    longer = tmp_path / "longer.bundle"
    longer.write_bytes(content_of(bundle) + b"x")
    with pytest.raises(BundleDamaged, match="follows its end"):
        await imported(longer)


async def test_a_file_that_unpacks_to_too_much_is_refused(bundle: Path):
    with pytest.raises(BundleTooLarge):
        await imported(bundle, most_bytes=10_000)
    assert await imported(bundle, most_bytes=1_000_000) == ["small"]


async def test_a_format_of_the_future_is_refused(bundle: Path, tmp_path: Path):
    newer = tmp_path / "newer.bundle"
    newer.write_bytes(content_of(bundle).replace(b"bundle 0001", b"bundle 0002", 1))
    with pytest.raises(BundleTooNew):
        await imported(newer)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_altered_byte_goes_unnoticed(bundle: Path, data: st.DataObject):
    content = bytearray(bundle.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
    if content == bundle.read_bytes():
        return
    with pytest.raises(BundleError):
        read_whole(bytes(content))


async def test_a_value_that_was_changed_is_noticed(bundle: Path, tmp_path: Path):
    changed = tmp_path / "changed.bundle"
    changed.write_bytes(with_frames_changed(content_of(bundle), b"xxxx", b"xyxx"))
    with pytest.raises(BundleDamaged, match="not what its name says"):
        await imported(changed)
    changed.write_bytes(with_frames_changed(content_of(bundle), b"Is it right?", b"Is it wrong?"))
    with pytest.raises(BundleDamaged, match="digests differ"):
        await imported(changed)


def with_frames_changed(content: bytes, old: bytes, new: bytes) -> bytes:
    """Return a bundle in which something was replaced by whoever knows how it is packed."""
    frame = struct.Struct(">BII")
    place, written = 20, content[:20]
    while place < len(content):
        part, _, size = frame.unpack_from(content, place)
        place += frame.size
        unpacked = zlib.decompress(content[place : place + size]).replace(old, new)
        packed = zlib.compress(unpacked)
        written += frame.pack(part, len(unpacked), len(packed)) + packed
        place += size
    return written


@pytest.mark.parametrize(
    ("kind", "changes", "problem"),
    [
        (WorkflowVersion, {"version": 0}, "no number of a version"),
        (WorkflowVersion, {"version": 2**63 - 1}, "no number of a version"),
        (WorkflowVersion, {"created_at": 2**62}, "no time that there is"),
        (e.Recorded, {"at": -1}, "no time that there is"),
        (NodeState, {"ended_at": 2**62}, "no time that there is"),
    ],
)
async def test_what_a_database_could_not_live_with_is_refused(
    bundle: Path, tmp_path: Path, kind: type[Any], changes: dict[str, Any], problem: str
):
    changed = tmp_path / "changed.bundle"
    with bundle.open("rb") as file, changed.open("wb") as other:
        reader = BundleReader(file, "it")
        writer = BundleWriter(other, reader.head)
        for part in reader.parts():
            if isinstance(part, BundledBlob):
                writer.add_blob(part.use, part.chunks)
            else:
                writer.add([replace(record, **changes) if isinstance(record, kind) else record for record in part])
        writer.end()
    with pytest.raises(BundleDamaged, match=problem):
        await imported(changed, verify=False)


@settings(max_examples=150)
@given(st.binary(max_size=300))
def test_nonsense_is_refused(content: bytes):
    with pytest.raises(BundleError):
        read_whole(b"perdure bundle 0001\n" + content)


def read_whole(content: bytes) -> None:
    class Held:
        place = 0

        def read(self, size: int) -> bytes:
            piece = content[self.place : self.place + size]
            self.place += len(piece)
            return piece

    for part in BundleReader(Held(), "it").parts():
        if isinstance(part, BundledBlob):
            assert b"".join(part.chunks)


async def test_a_run_that_does_not_obey_the_law_is_refused_unless_that_is_wanted(sqlite_url: str, tmp_path: Path):
    async with engine_at(sqlite_url, tmp_path, "here") as here:
        run = await here.start(bundle_flow, n=3, run_id="bent")
        await run.answer(await until_asked(run), True)
        await run.result()
    connection = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
    connection.execute("UPDATE run_node_state SET attempt = 7 WHERE node_id = 'bundle_text'")
    connection.close()
    async with engine_at(sqlite_url, tmp_path, "here") as here:
        await here.export("bent", tmp_path / "bent.bundle")

    with pytest.raises(BundleDamaged, match=r"I4.*--no-verify"):
        await imported(tmp_path / "bent.bundle")
    assert await imported(tmp_path / "bent.bundle", verify=False) == ["bent"]


@pytest.mark.slow
async def test_a_large_run_is_never_whole_in_memory(store_url: str, tmp_path: Path):
    store = await open_store(store_url)
    await save_workflow(store)
    draft = started("large")
    for page in range(40):
        for number in range(250):
            draft.step("step0", f"{page}-{number}", "x" * 2_000)
        assert list(await store.commit([draft.transition()])) == [Committed()]
    blobs = open_blobs(tmp_path.as_uri())

    tracemalloc.start()
    exported = await export_run(store, blobs, draft.run_id, tmp_path / "large.bundle", clock=SystemClock())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert exported.events > 10_000
    assert peak < 12_000_000, "twenty megabytes of events and as much of steps"
    await blobs.close()
    await store.close()
