"""Losing the lease, and coming back: in time, once, and without using up anything."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import msgspec
import pytest

from perdure import Engine, EngineSettings, node, workflow
from perdure.engine.owning import leases, membership
from perdure.engine.owning.leases import describe_process, is_gone
from perdure.errors import StoreUnavailable
from perdure.ids import EngineId, RunId
from perdure.testing.loop import run_virtual
from tests.crash.backends import opened_store
from tests.engine.engines import assert_whole, engine_on

QUICK = EngineSettings(heartbeat_seconds=0.1, lease_seconds=1.0, recovery_seconds=0.1, poll_seconds=0.1)


@node
async def tick(x: int) -> int:
    await asyncio.sleep(0.1)
    return x + 1


@workflow
def ticking(x: int) -> int:
    for _ in range(10):
        x = tick(x)
    return x


def heartbeats() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "perdure-heartbeat"]


async def test_an_engine_that_loses_its_lease_often_leaves_nothing_behind(sqlite_url: str):
    async with Engine(sqlite_url, settings=QUICK) as engine:
        await asyncio.sleep(0.2)
        tasks = len(asyncio.all_tasks())
        names = {engine.engine_id}
        for _ in range(5):
            await engine.store.retire_engine(engine.engine_id)
            async with asyncio.timeout(10):
                while engine.engine_id in names or not await engine.store.list_engines():
                    await asyncio.sleep(0.02)
            names.add(engine.engine_id)
        async with asyncio.timeout(10):
            # One that looks for news may be about to end, and the last heartbeat to begin.
            while len(asyncio.all_tasks()) > tasks or len(heartbeats()) < 1:
                await asyncio.sleep(0.02)

        assert len(heartbeats()) == 1
        assert [row.engine_id for row in await engine.store.list_engines() if row.is_alive] == [engine.engine_id]
    assert heartbeats() == []


async def test_a_heartbeat_that_cannot_open_its_store_tries_again(sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    """The store takes no more connections while the engine joins; the runs it has do not pay for that."""
    open_store = membership.open_store
    refused = 0

    async def refusing(*args: Any, **options: Any) -> Any:
        nonlocal refused
        if refused < 4:
            refused += 1
            raise [StoreUnavailable("too many connections"), RuntimeError("can't start new thread")][refused % 2]
        return await open_store(*args, **options)

    monkeypatch.setattr(membership, "open_store", refusing)
    async with Engine(sqlite_url, settings=QUICK) as engine:
        name = engine.engine_id
        run = await engine.start(ticking, run_id="run", x=0)

        assert await run.result() == 10
        assert refused == 4
        assert engine.engine_id == name
        assert (await run.state()).epoch == 1


async def test_a_lease_that_is_lost_again_at_once_does_not_spin(sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    """Whatever ends the heartbeat, somebody hears of it, and the engine comes back no faster than it beats."""

    async def broken(self: leases.Heartbeat) -> None:
        raise MemoryError("nothing is left")

    async with Engine(sqlite_url, settings=QUICK) as engine:
        names: set[EngineId] = set()
        with monkeypatch.context() as patch:
            patch.setattr(leases.Heartbeat, "_beat", broken)
            await engine.store.retire_engine(engine.engine_id)
            deadline = asyncio.get_running_loop().time() + 1.0
            while asyncio.get_running_loop().time() < deadline:
                names.add(engine.engine_id)
                await asyncio.sleep(0.01)
        assert 2 <= len(names) <= 12
        run = await engine.start(ticking, x=0)

        assert await run.result() == 10


def test_runs_go_on_though_the_lease_was_lost_while_nothing_could_be_asked(sqlite_url: str):
    async def main() -> None:
        async with opened_store(sqlite_url) as store, engine_on(store) as engine:
            run = await engine.start(ticking, run_id="run", x=0)
            await store.retire_engine(engine.engine_id)
            assert await run.result() == 10
            await asyncio.sleep(60)
            assert (await run.state()).recoveries == 0
            await assert_whole(engine, run)

    run_virtual(main())


def test_nobody_waits_for_a_lease_that_is_lost_while_the_engine_stops(sqlite_url: str):
    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            engine = engine_on(store, heartbeat_seconds=1.0)
            async with engine, asyncio.timeout(100):
                await engine.start(ticking, run_id="run", x=0)
                await store.retire_engine(engine.engine_id)
                await engine.stop(grace_seconds=5)
            stored = await store.load_run(RunId("run"))
            assert stored is not None
            assert stored.owner is None

    run_virtual(main())


# Telling who is gone


def test_an_engine_is_gone_with_its_process():
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    start = leases._process_start(child.pid)
    row = msgspec.structs.replace(describe_process(EngineId("e"), ""), pid=child.pid, process_start=start)
    assert not is_gone(row)
    child.kill()
    while leases._process_start(child.pid):
        pass

    assert is_gone(row)  # it has ended, though nobody has collected it yet
    child.communicate()
    assert is_gone(row)


def test_a_process_id_that_is_used_again_is_another_process():
    row = msgspec.structs.replace(describe_process(EngineId("e"), ""), process_start="1")

    assert is_gone(row)


def test_an_engine_that_cannot_be_seen_is_not_robbed(monkeypatch: pytest.MonkeyPatch):
    """Another user's process: /proc shows nothing of it (hidepid), and asking for it is not permitted."""

    def forbidden(pid: int, number: int) -> None:
        raise PermissionError

    row = msgspec.structs.replace(describe_process(EngineId("e"), ""), pid=1, process_start="77")
    monkeypatch.setattr(leases, "_process_start", lambda pid: None)
    monkeypatch.setattr(os, "kill", forbidden)

    assert not is_gone(row)
