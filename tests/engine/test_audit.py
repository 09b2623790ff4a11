"""Runs whose tables alone count: their logs are written on the side, and nothing depends on them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest

from perdure import Context, Engine, EngineSettings, collect, node, workflow
from perdure.engine.inspect import follow_events, report_run, verify_run
from perdure.engine.keeping import compacting
from perdure.engine.keeping.compacting import compact_run
from perdure.engine.recording import trail
from perdure.engine.runs.run import Run
from perdure.engine.stored.following import LAST_EVENTS_SECONDS
from perdure.errors import LogNotWhole, RunFailed, RunIdTaken, StoreLocked
from perdure.ids import EventId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.store.shapes import StoredRun
from perdure.testing.loop import run_virtual
from perdure.testing.proxy import StoreProxy
from tests.crash.backends import opened_world
from tests.engine.engines import assert_whole, in_another_process, killed_after, log_of

ran: Counter[str] = Counter()
broken: set[str] = set()
gates: dict[str, asyncio.Event] = {}
AT_ONCE = timedelta(0)
SECRET = "hunter2"


@pytest.fixture(autouse=True)
def nothing_so_far() -> None:
    ran.clear()
    broken.clear()
    gates.clear()


@node
async def audit_step(ctx: Context, x: int, more: int = 1) -> int:
    ran[ctx.node_id] += 1
    if ctx.node_id in gates:
        await gates[ctx.node_id].wait()
    if ctx.node_id in broken:
        raise ValueError("broken")
    return x + more


@workflow
def audit_chain(x: int, y: int = 10) -> int:
    return audit_step.named("last")(audit_step.named("middle")(audit_step.named("first")(x)), y)


@node
async def audit_count(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number


@workflow
def audit_map(n: int) -> list[int]:
    return collect(audit_step.map(audit_count(n)))


@node
async def audit_jots(ctx: Context, places: int) -> int:
    for place in range(places):
        await ctx.checkpoint(place)
    return places


@workflow
def audit_long(places: int) -> int:
    return audit_jots(places)


@node
async def audit_keep(text: str) -> str:
    return text + "!"


@workflow
def audit_text(text: str) -> str:
    return audit_keep(text)


class Hindered(StoreProxy):
    """Has something happen whenever events are to be written on the side."""

    def __init__(self, inner: Store, hinder: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self.tries = 0
        self._hinder = hinder

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "append_events":
            self.tries += 1
            await self._hinder()
        return await call()


async def execute(url: str, script: str) -> None:
    """Do something to the database behind everybody's back."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.set_busy_timeout(5_000)
        connection.execute(script)
        connection.close()
    else:
        raw = await asyncpg.connect(url)
        await raw.execute(script)
        await raw.close()


def refusing(url: str, condition: str) -> str:
    """Return what has the log refuse events from here on."""
    if url.startswith("sqlite"):
        return (
            f"CREATE TRIGGER refuse BEFORE INSERT ON run_events WHEN {condition.replace('?', 'NEW.')} "
            "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )
    return f"ALTER TABLE run_events ADD CONSTRAINT refuse CHECK (NOT ({condition.replace('?', '')})) NOT VALID"


async def audited_run(engine: Engine, run_id: str = "run", x: int = 1) -> Run[int]:
    run = await engine.start(audit_chain, x=x, run_id=run_id)
    assert await run.result() == x + 12
    return run


async def whole_log(run: Run[Any]) -> list[e.Recorded]:
    """Return the log of a run when all of it is written."""
    last = (await run.state()).last_seq
    async with asyncio.timeout(10):
        while len(log := await log_of(run)) < last:
            await asyncio.sleep(0.01)
    return log


async def test_the_log_is_written_on_the_side(store_url: str) -> None:
    async with Engine(store_url, journal="audit") as engine:
        run = await audited_run(engine)

        log = await whole_log(run)

        assert [entry.seq for entry in log] == list(range(1, (await run.state()).last_seq + 1))
        assert isinstance(log[-1].event, e.RunCompleted)
        await assert_whole(engine, run)
        assert (await report_run(engine.store, run.run_id)).journal == "audit"


async def test_stopping_writes_what_waits(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "GATHER_SECONDS", 3_600.0)
    async with Engine(store_url, journal="audit") as engine:
        run = await audited_run(engine)
        last = (await run.state()).last_seq
        assert await log_of(run) == []

    async with Engine(store_url, recover=False) as engine:
        assert len(await log_of(await engine.get("run"))) == last


async def test_whoever_continues_a_run_keeps_to_it(store_url: str, tmp_path: Path) -> None:
    gates["middle"] = asyncio.Event()
    async with Engine(store_url, journal="audit", settings=EngineSettings(grace_seconds=0)) as engine:
        run = await engine.start(audit_chain, x=1, run_id="run")
        while not ran["middle"]:
            await asyncio.sleep(0.01)
    gates["middle"].set()
    await execute(store_url, "DELETE FROM run_events")

    async with Engine(store_url) as engine:
        run = await engine.get("run")
        assert await run.result() == 13
        log = await log_of(run)
        assert (await run.state()).settings.journal == "audit"
        assert len(log) < (await run.state()).last_seq
        await assert_whole(engine, run)
        ordinary = await engine.start(audit_chain, x=1, run_id="ordinary")
        await ordinary.result()
        assert (await ordinary.state()).audit is None
    assert ran["first"] == 2, "once in each of the two runs"


async def test_an_event_that_is_refused_is_lost_alone(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Engine(store_url) as engine:
        await audited_run(engine, "first")
    await execute(store_url, refusing(store_url, "?event_type = 'NodeCompleted'"))

    with caplog.at_level(logging.WARNING, "perdure.trail"):
        async with Engine(store_url, journal="audit") as engine:
            for number in range(3):
                await audited_run(engine, f"run-{number}")

    async with Engine(store_url, recover=False) as engine:
        for number in range(3):
            run = await engine.get(f"run-{number}")
            kinds = Counter(type(entry.event) for entry in await log_of(run))
            assert kinds[e.NodeCompleted] == 0
            assert kinds[e.RunCreated] == kinds[e.RunCompleted] == 1
            assert kinds.total() == (await run.state()).last_seq - 3
            await assert_whole(engine, run)
    warnings = [record for record in caplog.records if record.name == "perdure.trail"]
    assert [record.getMessage() for record in warnings] == ["events_lost"], "once in a while"


async def test_a_database_that_takes_no_events_holds_up_no_run(
    store_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail, "FIRST_RETRY_SECONDS", 0.01)
    inner = await open_store(store_url)
    is_locked = True

    async def hinder() -> None:
        if is_locked:
            raise StoreLocked("The test has locked the log.")

    store = Hindered(inner, hinder)
    async with Engine(store.as_store, journal="audit") as engine:
        run = await audited_run(engine)
        while store.tries < 3:
            await asyncio.sleep(0.01)
        assert await log_of(run) == []
        is_locked = False
        assert len(await whole_log(run)) == (await run.state()).last_seq
    await inner.close()
    assert [record.getMessage() for record in caplog.records if record.name == "perdure.trail"] == ["events_wait"]


async def test_a_log_that_is_locked_holds_up_no_run(postgres_url: str) -> None:
    async with Engine(postgres_url, journal="audit") as engine:
        other = await asyncpg.connect(postgres_url)
        async with other.transaction():
            await other.execute("LOCK TABLE run_events IN EXCLUSIVE MODE")
            began = time.monotonic()
            run = await audited_run(engine)
            assert time.monotonic() - began < 2
            assert (await other.fetchval("SELECT count(*) FROM run_events")) == 0
        await other.close()
        assert len(await whole_log(run)) == (await run.state()).last_seq


@node
async def audit_wait(ctx: Context, x: int) -> int:
    return x + int(await ctx.wait_for("more"))


@workflow
def audit_waiting(x: int) -> int:
    return audit_wait(x)


async def test_a_log_that_nobody_can_read_holds_up_no_run(postgres_url: str) -> None:
    """As whoever changes the table, empties it or rewrites it locks it: those who only name it in a statement wait, too."""
    async with Engine(postgres_url, journal="audit", settings=EngineSettings(hibernate_after=0)) as engine:
        done = await audited_run(engine)
        waiting = await engine.start(audit_waiting, x=1)
        while (await waiting.state()).status is not RunStatus.SUSPENDED:
            await asyncio.sleep(0.02)
        await engine.write_trail(5)
        other = await asyncpg.connect(postgres_url)
        try:
            async with other.transaction(), asyncio.timeout(5):
                await other.execute("LOCK TABLE run_events IN ACCESS EXCLUSIVE MODE")
                await waiting.signal("more", 10)
                assert await waiting.result() == 11
                assert await (await engine.start(audit_chain, run_id=done.run_id, x=1)).result() == 13
        finally:
            await other.close()


async def test_an_engine_stops_in_time_though_events_cannot_be_written(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    inner = await open_store(store_url)

    async def hinder() -> None:
        await asyncio.Event().wait()

    began = time.monotonic()
    async with Engine(
        Hindered(inner, hinder).as_store, journal="audit", settings=EngineSettings(grace_seconds=1)
    ) as engine:
        run = await audited_run(engine)
        last = (await run.state()).last_seq
    await inner.close()

    assert time.monotonic() - began < 5
    (warning,) = [record for record in caplog.records if record.name == "perdure.trail"]
    assert (warning.getMessage(), getattr(warning, "lost", None)) == ("events_lost", last)


async def test_what_waits_has_a_bound(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "MOST_EVENTS", 20)
    monkeypatch.setattr(trail, "FIRST_RETRY_SECONDS", 0.01)
    inner = await open_store(store_url)
    open_again = asyncio.Event()
    store = Hindered(inner, open_again.wait)  # type: ignore[arg-type]
    async with Engine(store.as_store, journal="audit") as engine:
        first = await audited_run(engine, "first")
        while not store.tries:
            await asyncio.sleep(0.01)
        runs = [await audited_run(engine, f"run-{number}") for number in range(5)]
        open_again.set()
        last = runs[-1]
        await whole_log(last)
        lost = 0
        for run in (first, *runs):
            lost += (await run.state()).last_seq - len(await log_of(run))
            await assert_whole(engine, run)
        assert lost >= 3 * (await last.state()).last_seq
        assert len(await log_of(runs[0])) < (await runs[0].state()).last_seq, "the oldest that waited"
    await inner.close()


def test_large_events_count_for_what_they_hold() -> None:
    text = e.NodeCompleted(
        node_id="n", attempt=1, outputs={"output": msgspec.Raw(b'"' + b"x" * 100_000 + b'"')}, duration_ms=1
    )  # type: ignore[arg-type]
    recorded = e.Recorded(seq=Seq(1), id=EventId("i"), branch_id=1, epoch=1, at=1, event=text)  # type: ignore[arg-type]

    assert 100_000 < trail._weight(recorded) < 102_000


# Recovery


@pytest.mark.parametrize("damage", ["nothing", "emptied", "garbled"])
def test_a_run_is_taken_over_by_its_tables_alone(damage: str, store_url: str, tmp_path: Path) -> None:
    scripts = {
        "nothing": "SELECT 1",
        "emptied": "DELETE FROM run_events",
        "garbled": "UPDATE run_events SET payload = 'garbage', event_type = 'Garbage', epoch = 77",
    }

    async def main() -> None:
        async with opened_world(store_url, tmp_path, journal="audit") as world:
            gates["middle"] = asyncio.Event()

            async def begin(engine: Engine) -> None:
                await engine.start(audit_chain, x=1, run_id="run")
                while not ran["middle"]:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(1)

            await killed_after(world, begin)
            await execute_outside(store_url, scripts[damage])
            gates["middle"].set()

            async def finish(engine: Engine) -> int:
                return await (await engine.get("run")).result()

            assert await in_another_process(world, finish) == 13
        assert ran == Counter(first=1, middle=2, last=1)

    run_virtual(main())


async def execute_outside(url: str, script: str) -> None:
    loop: Any = asyncio.get_running_loop()
    with loop.outside():
        await execute(url, script)


def test_the_time_that_a_run_is_given_survives_its_engines(sqlite_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened_world(sqlite_url, tmp_path, journal="audit") as world:
            gates["first"] = asyncio.Event()

            async def begin(engine: Engine) -> None:
                run = await engine.start(audit_chain, x=1, run_id="run", timeout=100)
                await asyncio.sleep(60)
                await run.pause(grace=0)
                await run.wait()

            await killed_after(world, begin)
            state = await world.store.load_state(RunId("run"))
            assert state is not None
            assert state.audit is not None
            assert 60e6 <= state.audit.driven_micros < 70e6

            async def go_on(engine: Engine) -> float:
                run = await engine.get("run")
                await run.resume()
                began = engine.clock.monotonic()
                with pytest.raises(RunFailed):
                    await run.result()
                return engine.clock.monotonic() - began

            assert await in_another_process(world, go_on) < 45

    run_virtual(main())


# History


async def test_what_needs_the_log_says_so(store_url: str) -> None:
    async with Engine(store_url, journal="audit") as engine:
        run = await audited_run(engine)
        asked: list[Callable[[], Awaitable[Any]]] = [
            lambda: run.at(3),
            lambda: run.fork(at=3),
            lambda: run.restore(3),
            lambda: run.promote(1),
            lambda: run.preview(place=3),
            lambda: run.checkpoint("here"),
        ]
        for ask in asked:
            with pytest.raises(LogNotWhole, match="journal='audit'") as refused:
                await ask()
            assert (refused.value.run_id, refused.value.code) == ("run", "log_not_whole")
        assert await run.checkpoints() == []
        with pytest.raises(LogNotWhole, match="checkpoint_every"):
            await engine.start(audit_chain, x=1, run_id="saved", checkpoint_every=1)
        assert await engine.store.load_state(RunId("saved")) is None
        with pytest.raises(ValueError, match="journal='rumour'"):
            Engine(store_url, journal="rumour")  # type: ignore[arg-type]


async def test_what_the_tables_tell_works(store_url: str) -> None:
    async with Engine(store_url, journal="audit") as engine:
        broken.add("middle")
        run = await engine.start(audit_chain, x=1, run_id="run")
        with pytest.raises(RunFailed):
            await run.result()
        broken.clear()
        await execute(store_url, "DELETE FROM run_events")

        await run.retry()
        assert await run.result() == 13
        await run.jump("last", inputs={"more": 100})
        assert await run.result() == 103

        assert ran == Counter(first=1, middle=2, last=2)
        assert [branch.branch for branch in await run.branches()] == [1, 2, 3]
        await assert_whole(engine, run)
        fork = await run.fork(run_id="fork", inputs={"y": 20})
        assert await fork.result() == 23
        assert ran["first"] == 1
        origin = await fork.forked_from()
        assert origin is not None
        assert (origin.run_id, origin.seq) == ("run", (await run.state()).last_seq)
        assert (await fork.state()).settings.journal == "audit"
        await run.jump("last", inputs={"more": 7})
        assert await run.result() == 10
        assert (await run.fork(run_id="fork", inputs={"y": 20})).run_id == "fork", "it was made before"
        with pytest.raises(RunIdTaken):
            await run.fork(run_id="fork", inputs={"y": 21})
        assert (await run.fallback()).other == 1
        assert (await run.progress()).done == 3
        await assert_whole(engine, run, fork)


async def test_the_doctor_has_nothing_to_compare(store_url: str) -> None:
    async with Engine(store_url, journal="audit") as engine:
        run = await audited_run(engine)
        await whole_log(run)
        await execute(store_url, "UPDATE run_events SET payload = 'garbage'")

        diagnosis = await run.doctor(fix=True)

        assert diagnosis.is_healthy
        assert [note.code for note in diagnosis.notes] == ["G1"]
        assert diagnosis.repair is None


# Following


async def test_followers_end_with_the_run(store_url: str) -> None:
    inner = await open_store(store_url)

    async def hinder() -> None:
        raise StoreLocked("The test has locked the log.")

    async with Engine(
        Hindered(inner, hinder).as_store, journal="audit", settings=EngineSettings(grace_seconds=0.1)
    ) as engine:
        run = await engine.start(audit_chain, x=1, run_id="run")
        began = time.monotonic()
        async with asyncio.timeout(20):
            assert [entry async for entry in run.events()] == []
            assert [entry async for entry in follow_events(inner, run.run_id)] == []
        assert time.monotonic() - began < 6 * LAST_EVENTS_SECONDS
        assert await run.result() == 13
    await inner.close()


async def test_followers_see_all_that_is_written(store_url: str) -> None:
    async with Engine(store_url, journal="audit") as engine:
        run = await engine.start(audit_map, n=20, run_id="run")

        seen = [entry.seq async for entry in run.events()]

        assert seen == list(range(1, (await run.state()).last_seq + 1))


# Keeping


async def test_events_of_a_deleted_run_do_not_come_back(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "GATHER_SECONDS", 3_600.0)
    async with Engine(store_url, journal="audit") as engine:
        run = await engine.start(audit_text, text=SECRET, run_id="run")
        assert await run.result() == f"{SECRET}!"

        assert await run.delete()

        await engine.write_trail(10)
        kinds = [type(entry.event) for entry in await log_of(run)]
        assert kinds == [e.RunDeleted]
        assert not await run.delete()
        await assert_whole(engine, run)
    dump = await dumped(store_url, "run")
    assert SECRET not in repr(dump)


async def test_events_of_a_deleted_run_do_not_come_back_with_it_from_the_archive(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail, "GATHER_SECONDS", 3_600.0)
    settings = EngineSettings(archive_folder=str(tmp_path / "archive"))
    async with Engine(store_url, journal="audit", settings=settings) as engine:
        run = await engine.start(audit_text, text=SECRET, run_id="run")
        assert await run.result() == f"{SECRET}!"
        assert await run.delete()
        await execute(
            store_url, "DELETE FROM run_events"
        )  # others may prune it, and then nothing in it tells of the deletion
        assert (await engine.archive(older_than=AT_ONCE)).runs == 1
        back = await engine.unarchive("run")

        await engine.write_trail(10)

        assert await log_of(back) == []
    assert SECRET not in repr(await dumped(store_url, "run"))


async def test_events_of_a_run_that_was_removed_do_not_get_into_one_that_is_imported(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail, "GATHER_SECONDS", 3_600.0)
    async with Engine(store_url, journal="audit") as engine:
        await audited_run(engine)
        await engine.export("run", tmp_path / "run.bundle")
        tables = ("node_state", "branches", "waits", "commands", "state")
        await execute(store_url, ";".join(f"DELETE FROM run_{table}" for table in tables))
        imported = await engine.import_run(tmp_path / "run.bundle")

        await engine.write_trail(10)

        assert await log_of(imported) == []
        await imported.jump("last", inputs={"more": 5})
        assert await imported.result() == 8
        await engine.write_trail(10)
        kinds = [type(entry.event) for entry in await log_of(imported)]
        assert kinds[-1] is e.RunCompleted
        assert e.RunCreated not in kinds
        await assert_whole(engine, imported)


async def dumped(url: str, run_id: str) -> Any:
    store = await open_store(url)
    try:
        return await store.dump_run(RunId(run_id))
    finally:
        await store.close()


async def test_events_of_an_archived_run_do_not_come_back(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail, "GATHER_SECONDS", 3_600.0)
    settings = EngineSettings(archive_folder=str(tmp_path / "archive"))
    async with Engine(store_url, journal="audit", settings=settings) as engine:
        run = await audited_run(engine)
        before = await run.load()
        assert (await engine.archive(older_than=AT_ONCE)).runs == 1

        await engine.write_trail(10)

        assert await engine.store.load_events(RunId("run"), after=Seq(0), limit=9) == []
        back = await engine.unarchive("run")
        assert without_arrival(await back.load()) == without_arrival(before)
        assert await log_of(back) == []
        await assert_whole(engine, back)
        assert await back.result() == 13


def without_arrival(stored: StoredRun) -> StoredRun:
    audit = stored.run.audit
    assert audit is not None
    replace = msgspec.structs.replace
    return replace(stored, run=replace(stored.run, audit=replace(audit, arrival="")))


async def test_a_run_with_gaps_travels(store_url: str, tmp_path: Path) -> None:
    file = tmp_path / "run.bundle"
    async with Engine(store_url, journal="audit") as engine:
        run = await audited_run(engine)
        await whole_log(run)
        await execute(store_url, "DELETE FROM run_events WHERE seq IN (1, 4, 5)")
        await engine.export("run", file)
        before = await run.state()
        assert (await engine.import_run(file)).run_id == "run", "it is here already"

        other = await engine.import_run(file, run_id="other")

        state = await other.state()
        assert state.audit is not None
        assert msgspec.structs.replace(state.audit, arrival="") == before.audit
        assert [entry.seq for entry in await log_of(other)] == [entry.seq for entry in await log_of(run)]
        assert await other.result() == 13
        await assert_whole(engine, run, other)
        assert (await engine.import_run(file, run_id="other")).run_id == "other"
        await other.jump("last", inputs={"more": 5})
        assert await other.result() == 8
        await engine.import_run(file, run_id="other")


async def test_a_log_with_gaps_is_made_compact(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "EVENTS_PER_SEGMENT", 10)
    monkeypatch.setattr(compacting, "KEPT_EVENTS", 7)
    async with Engine(store_url, journal="audit") as engine:
        run = await engine.start(audit_long, places=60, run_id="run")
        await run.result()
        await whole_log(run)
        await execute(store_url, "DELETE FROM run_events WHERE seq % 3 = 0")
        before = await log_of(run)
        last = (await run.state()).last_seq
        within = sum(entry.seq <= last - 7 for entry in before)

        planned = await compact_run(engine.store, run.run_id, dry_run=True)
        done = await compact_run(engine.store, run.run_id)

        assert (done.events, done.runs) == (planned.events, planned.runs) == (within // 10 * 10, 1)
        assert await log_of(run) == before
        again = await compact_run(engine.store, run.run_id)
        assert again.events == 0
        await assert_whole(engine, run)


# Verifying


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        ("UPDATE run_events SET epoch = 9 WHERE seq = 3", "I12"),
        ("UPDATE run_events SET seq = 999 WHERE seq = 4", "I1"),
        ("UPDATE run_events SET branch_id = 7 WHERE seq = 4", "I5"),
        ("UPDATE run_events SET id = (SELECT id FROM run_events WHERE seq = 2) WHERE seq = 4", "I1"),
        ("UPDATE run_events SET id = 'other' WHERE seq = 1", "I2"),
        ("UPDATE run_state SET status = 'running', ended_at = NULL", "I8"),
        ("UPDATE run_node_state SET last_seq = 999 WHERE node_id = 'last'", "I5"),
        ("UPDATE run_node_state SET status = 'scheduled' WHERE node_id = 'first'", "I16"),
        ("UPDATE run_state SET owner = 'somebody'", "I15"),
        ("UPDATE run_state SET branch_id = 3", "I4"),
        ("UPDATE run_events SET payload = 'garbage' WHERE seq = 3", "I4"),
    ],
)
async def test_what_does_not_fit_is_found(store_url: str, damage: str, invariant: str) -> None:
    async with Engine(store_url, journal="audit") as engine:
        run = await audited_run(engine)
        await whole_log(run)
        await execute(store_url, "DELETE FROM run_events WHERE seq IN (5, 6)")
        assert await verify_run(engine, "run") == []

        await execute(store_url, damage)

        assert invariant in {found.invariant for found in await verify_run(engine, "run")}


async def test_items_that_were_changed_are_found(store_url: str) -> None:
    gates["audit_step"] = asyncio.Event()
    async with Engine(store_url, journal="audit", settings=EngineSettings(grace_seconds=0)) as engine:
        run = await engine.start(audit_map, n=5, run_id="run")
        while not ran["audit_step"]:
            await asyncio.sleep(0.01)
        await run.pause(grace=0)
        while await run.status() is not RunStatus.PAUSED:
            await asyncio.sleep(0.01)
        await assert_whole(engine, run)

        await execute(store_url, "UPDATE run_inbox_messages SET items = '[0,1,2,3,5]'")

        assert [found.invariant for found in await verify_run(engine, "run")] == ["I18"]
