"""Collecting blobs: what nothing refers to goes when it is old, and nothing else ever does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, Image, node, workflow
from perdure.clock import SystemClock
from perdure.engine.keeping.collecting import Collection, collect_blobs
from perdure.errors import RunFailed
from perdure.ids import digest_of
from perdure.store.blobs import open_blobs
from perdure.store.opening import open_store
from perdure.testing.proxy import StoreProxy
from tests.engine.engines import assert_whole

DAY = timedelta(days=1)


def place_of(tmp_path: Path) -> Path:
    return tmp_path / "perdure.db-blobs"


def blobs_in(tmp_path: Path) -> set[str]:
    return {path.name for path in place_of(tmp_path).glob("??/*")}


def grow_old(tmp_path: Path) -> None:
    """Let every blob be very old."""
    for path in place_of(tmp_path).glob("??/*"):
        os.utime(path, (1, 1))


_gate = asyncio.Event()
_held = asyncio.Event()


@node
async def drawn(ctx: Context, text: str) -> Image:
    await ctx.asset(b"a draft of " + text.encode())  # which nothing ever refers to
    return await ctx.asset(text.encode(), kind=Image)


@node
async def waiting(image: Image) -> Image:
    _held.set()
    await _gate.wait()
    return image


@node
async def failing(ctx: Context, image: Image) -> Image:
    await ctx.asset(b"written by an attempt that fails")
    raise ValueError("no")


@node
async def large() -> str:
    return "x" * 500_000


@workflow
def drawing(text: str) -> str:
    drawn(text)
    return large()


@workflow
def holding(text: str) -> Image:
    return waiting(drawn(text))


@workflow
def broken(text: str) -> Image:
    return failing(drawn(text))


async def test_what_runs_refer_to_stays_and_the_rest_goes_when_it_is_old(sqlite_url: str, tmp_path: Path):
    _gate.clear()
    _held.clear()
    async with Engine(sqlite_url) as engine:
        ended = await engine.start(drawing, text="ended")
        await ended.result()
        failed = await engine.start(broken, text="failed")
        with pytest.raises(RunFailed):
            await failed.result()
        live = await engine.start(holding, text="live")
        await _held.wait()
        for dry_run in (True, False):
            young = await engine.collect_blobs(dry_run=dry_run)
            assert (young.used, young.young, young.collected) == (4, 4, 0)
        grow_old(tmp_path)

        planned = await engine.collect_blobs(dry_run=True)
        assert len(blobs_in(tmp_path)) == 8
        done = await engine.collect_blobs()

        garbage = [b"a draft of ended", b"a draft of failed", b"a draft of live", b"written by an attempt that fails"]
        assert done == Collection(
            place=str(place_of(tmp_path)),
            is_dry_run=False,
            used=4,
            collected=4,
            collected_bytes=sum(map(len, garbage)),
        )
        assert planned == Collection(
            place=done.place, is_dry_run=True, used=4, collected=4, collected_bytes=done.collected_bytes
        )
        assert blobs_in(tmp_path).isdisjoint(map(digest_of, garbage))
        assert {digest_of(text) for text in (b"ended", b"failed", b"live")} < blobs_in(tmp_path)
        _gate.set()
        assert (await live.result()).digest == digest_of(b"live")
        await assert_whole(engine, ended, failed, live)
        assert (await engine.collect_blobs()).collected == 0


@pytest.mark.parametrize("older_than", [timedelta(0), timedelta(minutes=59), -DAY])
async def test_a_grace_period_that_is_too_short_is_refused(sqlite_url: str, older_than: timedelta):
    async with Engine(sqlite_url) as engine:
        with pytest.raises(ValueError, match="too short"):
            await engine.collect_blobs(older_than=older_than)


async def test_an_object_store_needs_a_longer_grace_period(sqlite_url: str):
    async with Engine(sqlite_url, blobs="memory:///") as engine:
        await engine.asset(b"x")
        with pytest.raises(ValueError, match="too short"):
            await engine.collect_blobs(older_than=timedelta(hours=23))
        assert (await engine.collect_blobs(older_than=DAY)).young == 1


async def test_the_blobs_of_other_projects_stay(sqlite_url: str, tmp_path: Path):
    async with Engine(sqlite_url, project="theirs") as theirs:
        run = await theirs.start(drawing, text="theirs")
        await run.result()
    grow_old(tmp_path)

    async with Engine(sqlite_url, project="ours") as ours:
        assert (await ours.collect_blobs()).used == 2

    assert digest_of(b"theirs") in blobs_in(tmp_path)


class Meanwhile(StoreProxy):
    """Does something whenever it was found out which blobs are in use."""

    def __init__(self, store: Any, act: Callable[[], Awaitable[None]]) -> None:
        super().__init__(store)
        self._act = act

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        result = await call()
        if name == "used_blobs":
            await self._act()
        return result


async def test_a_blob_that_is_written_again_while_it_is_collected_stays(sqlite_url: str, tmp_path: Path):
    """The writer comes after the collector has found that nobody uses the blob."""
    async with Engine(sqlite_url) as engine:
        await engine.asset(b"again")
        await engine.asset(b"never again")
        grow_old(tmp_path)

        async def write_again() -> None:
            run = await engine.start(drawing, text="again")
            await run.result()

        store = Meanwhile(engine.store, write_again).as_store
        done = await collect_blobs(store, engine.values.blobs, older_than=DAY, dry_run=False, clock=SystemClock())

        assert done.collected == 1
        assert digest_of(b"again") in blobs_in(tmp_path)
        assert digest_of(b"never again") not in blobs_in(tmp_path)
        (run,) = await engine.list()
        await assert_whole(engine, await engine.get(run.run_id))


async def test_an_old_asset_that_is_given_to_a_run_while_it_is_collected_stays(sqlite_url: str, tmp_path: Path):
    async with Engine(sqlite_url) as engine:
        asset = await engine.asset(b"kept", kind=Image)
        grow_old(tmp_path)
        _gate.set()

        async def refer() -> None:
            await (await engine.start(passed, image=asset)).result()

        store = Meanwhile(engine.store, refer).as_store
        done = await collect_blobs(store, engine.values.blobs, older_than=DAY, dry_run=False, clock=SystemClock())

        assert done.collected == 0
        assert (await engine.open(asset)).path.read_bytes() == b"kept"


@workflow
def passed(image: Image) -> Image:
    return waiting(image)


DIES = """
import asyncio, os, sys
from perdure import Context, Engine, Image, node, workflow

@node
async def drawn(ctx: Context) -> Image:
    image = await ctx.asset(b"attempt %d" % ctx.attempt, kind=Image)
    if ctx.attempt == 1:
        os._exit(9)
    return image

@workflow
def drawing() -> Image:
    return drawn()

async def main() -> None:
    async with Engine(sys.argv[1]) as engine:
        run = await engine.start(drawing, run_id="r")
        print((await run.result()).digest)

asyncio.run(main())
"""


async def test_what_was_written_before_a_crash_is_garbage_and_goes(sqlite_url: str, tmp_path: Path):
    program = tmp_path / "dies.py"
    program.write_text(DIES)

    def lived() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), sqlite_url]
        return subprocess.run(command, check=False, cwd=tmp_path, timeout=60, capture_output=True, text=True)

    assert (await asyncio.to_thread(lived)).returncode == 9
    again = await asyncio.to_thread(lived)
    kept, garbage = again.stdout.strip(), digest_of(b"attempt 1")
    assert blobs_in(tmp_path) == {kept, garbage}
    grow_old(tmp_path)

    store, blobs = await open_store(sqlite_url), open_blobs(place_of(tmp_path).as_uri())
    done = await collect_blobs(store, blobs, older_than=DAY, dry_run=False, clock=SystemClock())
    await store.close()
    await blobs.close()

    assert (done.used, done.collected) == (1, 1)
    assert blobs_in(tmp_path) == {kept}


async def test_thousands_of_blobs_are_asked_for_in_pages(sqlite_url: str, tmp_path: Path):
    asked: list[int] = []

    class Counting(StoreProxy):
        async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
            asked.append(len(args[0]))
            return await call()

    store, blobs = await open_store(sqlite_url), open_blobs(place_of(tmp_path).as_uri())
    await blobs.put(digest_of(b"first"), b"first")
    for number in range(1_100):
        digest = digest_of(b"%d" % number)
        (place_of(tmp_path) / digest[:2] / digest).write_bytes(b"%d" % number)
    grow_old(tmp_path)

    done = await collect_blobs(Counting(store).as_store, blobs, older_than=DAY, dry_run=False, clock=SystemClock())
    await store.close()
    await blobs.close()

    assert done.collected == 1_101
    assert asked == [500, 500, 101]
    assert blobs_in(tmp_path) == set()
