"""Forks: other runs that take over what a run has done."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Context, Engine, EngineSettings, Stream, ask, collect, node, when, workflow
from perdure.clock import SystemClock
from perdure.engine.keeping.collecting import collect_blobs
from perdure.engine.runs.run import Run
from perdure.errors import BlobMissing, PlaceNotFound, RunFailed, RunIdTaken, VersionNotFound, WrongInputs
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.testing.proxy import StoreProxy
from tests.engine.engines import assert_whole, log_of

ran: Counter[str] = Counter()
keys: set[str] = set()
broken: set[str] = set()


@pytest.fixture(autouse=True)
def nothing_so_far() -> None:
    ran.clear()
    keys.clear()
    broken.clear()


@node
async def fork_step(ctx: Context, x: int, more: int = 1) -> int:
    ran[ctx.node_id] += 1
    keys.add(ctx.idempotency_key)
    if ctx.node_id in broken:
        raise ValueError("broken")
    return x + more


@workflow
def fork_chain(x: int, y: int = 10) -> int:
    return fork_step.named("last")(fork_step.named("middle")(fork_step.named("first")(x)), y)


async def test_a_fork_does_what_the_run_has_not_done(store_url: str) -> None:
    async with Engine(store_url) as engine:
        broken.add("middle")
        run = await engine.start(fork_chain, x=0)
        with pytest.raises(RunFailed):
            await run.result()
        before = await run.load()
        broken.clear()
        ran.clear()

        fork = await run.fork(run_id="fork")

        assert await fork.result() == 12
        assert ran == Counter(middle=1, last=1)
        assert len({key for key in keys if "/middle/" in key}) == 2, "it is another run"
        origin = await fork.forked_from()
        assert origin is not None
        assert (origin.run_id, origin.seq) == (run.run_id, before.run.last_seq)
        assert await run.forked_from() is None
        assert await run.load() == before, "nothing has happened to it"
        assert (await fork.branches())[-1].reason == f"forked from run {run.run_id} at event {origin.seq}"
        await assert_whole(engine, run)
        await assert_whole(engine, fork)


async def test_another_input_counts_more_than_what_a_jump_put_in_the_place_of_the_first(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(fork_chain, x=0)
        await run.jump("last", inputs={"more": 100})
        assert await run.result() == 102

        fork = await run.fork(inputs={"y": 7})

        assert await fork.result() == 9
        await assert_whole(engine, fork)


async def test_a_fork_of_a_run_that_has_completed_has_completed(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(fork_chain, x=0)
        await run.result()
        ran.clear()

        fork = await run.fork()

        assert await fork.result() == 12
        assert not ran
        await assert_whole(engine, fork)
        await fork.jump("last", inputs={"more": 100})
        assert await fork.result() == 102
        assert await run.result() == 12
        await assert_whole(engine, fork)


async def test_with_other_inputs_what_depends_on_them_runs(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(fork_chain, x=0)
        await run.result()
        ran.clear()

        late = await run.fork(inputs={"y": 100})
        assert await late.result() == 102
        assert ran == Counter(last=1)
        early = await run.fork(inputs={"x": 100})
        assert await early.result() == 112
        assert ran == Counter(first=1, middle=1, last=2)
        assert (await early.load()).run.inputs.keys() == {"x", "y"}
        with pytest.raises(WrongInputs, match="no input 'z'"):
            await run.fork(inputs={"z": 1})
        await assert_whole(engine, late)
        await assert_whole(engine, early)


async def test_a_fork_begins_at_a_place(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(fork_chain, x=0)
        await run.result()
        first = next(entry for entry in await log_of(run) if type(entry.event).__name__ == "NodeCompleted")
        ran.clear()

        fork = await run.fork(at=first.seq)

        assert await fork.result() == 12
        assert ran == Counter(middle=1, last=1)
        with pytest.raises(PlaceNotFound):
            await run.fork(at="nowhere")
        await assert_whole(engine, fork)


async def test_a_fork_is_begun_once_for_an_id(store_url: str) -> None:
    async with Engine(store_url) as engine, Engine(store_url) as other:
        run = await engine.start(fork_chain, x=0)
        await run.result()
        elsewhere = await other.get(run.run_id)

        forks = await asyncio.gather(*(found.fork(run_id="twin") for found in (run, elsewhere, run)))
        await forks[0].result()
        await run.jump("last", inputs={"more": 5})
        await run.result()
        again = await run.fork(run_id="twin")

        assert {fork.run_id for fork in (*forks, again)} == {"twin"}
        assert await again.result() == 12, "it is the fork of what the run was then"
        with pytest.raises(RunIdTaken, match="input 'x'"):
            await run.fork(run_id="twin", inputs={"x": 7})
        with pytest.raises(RunIdTaken, match="from which it was forked"):
            await run.fork(run_id="twin", at=3)
        with pytest.raises(RunIdTaken, match="from which it was forked"):
            await run.fork(run_id=run.run_id)


async def test_what_a_run_was_given_goes_with_the_fork(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(fork_chain, x=0)
        await run.result()
        broken.add("middle")
        await run.jump("middle", inputs={"more": 1_000})
        with pytest.raises(RunFailed):
            await run.result()
        broken.clear()

        fork = await run.fork()

        assert await fork.result() == 1_011
        await assert_whole(engine, fork)


@node
async def fork_numbers(n: int) -> AsyncIterator[int]:
    ran["numbers"] += 1
    for x in range(n):
        yield x


@node
async def fork_double(ctx: Context, x: int) -> int:
    ran["double"] += 1
    if f"item {x}" in broken:
        raise ValueError(x)
    return x * 2


@node
async def fork_total(xs: list[int]) -> int:
    return sum(xs)


@workflow
def fork_flow(n: int) -> int:
    return fork_total(collect(fork_double.map(fork_numbers(n))))


async def test_a_stream_is_taken_over_as_a_whole_or_not_at_all(store_url: str) -> None:
    async with Engine(store_url) as engine:
        broken.add("item 3")
        run = await engine.start(fork_flow, n=5)
        with pytest.raises(RunFailed):
            await run.result()
        broken.clear()
        ran.clear()

        fork = await run.fork()
        assert await fork.result() == 20
        assert ran == Counter(numbers=1, double=5)
        await assert_whole(engine, fork)
        ran.clear()
        whole = await fork.fork()
        assert await whole.result() == 20
        assert not ran
        await assert_whole(engine, whole)


@workflow
def fork_fed(xs: Stream[int]) -> int:
    return fork_total(collect(fork_double.map(xs)))


async def test_a_fork_is_fed_anew(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(fork_fed)
        await run.send("xs", 1)

        fork = await run.fork()
        await fork.send("xs", 10)
        await fork.close("xs")
        await run.close("xs")

        assert await fork.result() == 20
        assert await run.result() == 2
        await assert_whole(engine, fork)
        ended = await run.fork()
        assert await ended.result() == 2
        await assert_whole(engine, ended)


@workflow
def fork_asked(x: int) -> int | None:
    with when(ask("Go on?", schema=bool)):
        y = fork_step(fork_step(x))
    return y


async def question_of(run: Run[Any]) -> str:
    async with asyncio.timeout(20):
        while not (found := await run.questions()):
            await asyncio.sleep(0.01)
    return found[0].interaction_id


async def test_each_asks_for_itself(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(fork_asked, x=0)
        first = await question_of(run)
        fork = await run.fork()
        second = await question_of(fork)

        await fork.answer(second, False)
        assert await fork.result() is None
        await run.answer(first, True)
        assert await run.result() == 2
        answered = await run.fork()
        assert await answered.result() == 2
        assert await fork.status() is RunStatus.COMPLETED
        await assert_whole(engine, fork)
        await assert_whole(engine, answered)


@node
async def fork_large(x: int) -> str:
    ran["large"] += 1
    return "x" * 600_000


@node
async def fork_length(text: str, by: int) -> int:
    return len(text) * by


@workflow
def fork_heavy(x: int, by: int = 1) -> int:
    return fork_length(fork_large(x), by)


async def test_blobs_stay_as_long_as_the_fork_refers_to_them(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(fork_heavy, x=0)
        await run.result()
        fork = await run.fork(inputs={"by": 2})

        assert await fork.result() == 1_200_000
        assert ran["large"] == 1
        await assert_whole(engine, fork)


@workflow
def fork_versions(x: int) -> int:
    return fork_step.named("last")(fork_step.named("middle")(fork_step.named("first")(x)))


@workflow
def fork_versions_later(x: int, much: int = 50) -> int:
    middle = fork_step.named("middle")(fork_step.named("first")(x))
    return fork_step.named("last")(fork_step.named("between")(middle, much))


async def test_on_another_version_only_what_differs_runs(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(fork_versions, x=0)
        assert await run.result() == 3
        later = msgspec.structs.replace(fork_versions_later.graph, name="fork_versions")
        await (await engine.start(later, inputs={"x": 0})).result()
        ran.clear()

        fork = await run.fork(version=2)

        assert await fork.result() == 53
        assert ran == Counter(between=1, last=1)
        assert (await fork.state()).version == 2
        await assert_whole(engine, fork)
        back = await fork.fork(version=1)
        assert await back.result() == 3
        assert ran == Counter(between=1, last=2)
        assert (await back.state()).inputs.keys() == {"x"}
        await assert_whole(engine, back)
        with pytest.raises(VersionNotFound, match="No version 9 of workflow 'fork_versions'"):
            await run.fork(version=9)


@node
async def fork_pages(x: int) -> AsyncIterator[str]:
    for number in range(50):
        yield f"{x} {number} " + "x" * 2_000


@node
async def fork_lengths(pages: list[str], by: int) -> int:
    return sum(map(len, pages)) * by


@workflow
def fork_streamed(x: int, by: int = 1) -> int:
    return fork_lengths(collect(fork_pages(x)), by)


class Meanwhile(StoreProxy):
    """Lets something happen when a fork is about to be written."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.happen: Callable[[], Awaitable[Any]] | None = None

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "commit" and self.happen is not None and any(one.base_seq == 0 for one in args[0]):
            happen, self.happen = self.happen, None
            await happen()
        return await call()


A_DAY = timedelta(days=1)


def grow_old(place: Path) -> None:
    """Let every blob be very old."""
    for path in place.glob("??/*"):
        os.utime(path, (1, 1))


@pytest.mark.parametrize("leaves", ["deleted", "archived"])
@pytest.mark.parametrize("flow", [fork_heavy, fork_streamed], ids=["value", "stream"])
async def test_blobs_stay_that_a_fork_shares_with_a_run_that_leaves_meanwhile(
    store_url: str, tmp_path: Path, flow: Any, leaves: str
) -> None:
    inner = await open_store(store_url)
    store = Meanwhile(inner)
    place = tmp_path / "blobs"
    settings = EngineSettings(inline_max_bytes=1_000, archive_folder=str(tmp_path / "archive"))
    async with Engine(store.as_store, blobs=place.as_uri(), settings=settings) as engine:
        run = await engine.start(flow, x=0)
        length = await run.result()
        blobs = engine.values.blobs

        async def leave() -> None:
            if leaves == "deleted":
                assert await run.delete()
            else:
                assert (await engine.archive(older_than=timedelta(0))).runs == 1
            await collect_blobs(store.as_store, blobs, older_than=A_DAY, dry_run=False, clock=SystemClock())

        grow_old(place)
        store.happen = leave
        fork = await run.fork(inputs={"by": 2})

        assert await fork.result() == 2 * length
        assert store.happen is None
        grow_old(place)
        await collect_blobs(store.as_store, blobs, older_than=A_DAY, dry_run=False, clock=SystemClock())
        await assert_whole(engine, fork)
    await inner.close()
    async with Engine(store_url, blobs=place.as_uri()) as engine:  # one that remembers no blobs
        again = await (await engine.get(fork.run_id)).fork(inputs={"by": 3})
        assert await again.result() == 3 * length


async def test_a_fork_is_refused_if_a_value_that_it_would_take_over_is_gone(store_url: str, tmp_path: Path) -> None:
    place = tmp_path / "blobs"
    async with Engine(store_url, blobs=place.as_uri()) as engine:
        run = await engine.start(fork_heavy, x=0)
        await run.result()
        for path in place.glob("??/*"):
            path.unlink()

        with pytest.raises(BlobMissing):
            await run.fork(run_id="fork", inputs={"by": 2})

        assert [found.run_id for found in await engine.list()] == [run.run_id]


@node
async def fork_count(ctx: Context, many: int) -> AsyncIterator[int]:
    ran[ctx.node_id] += 1
    for x in range(many):
        yield x


@workflow
def fork_two_streams(a: int, b: int) -> Any:
    first = fork_step.named("one").map(fork_count.named("ones")(a))
    return {"a": collect(first), "b": collect(fork_step.named("other").map(fork_count.named("others")(b)))}


async def test_a_stream_that_runs_beside_one_that_is_taken_over(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(fork_two_streams, a=2, b=3)
        assert await run.result() == {"a": [1, 2], "b": [1, 2, 3]}
        ran.clear()

        fork = await run.fork(inputs={"a": 4})

        async with asyncio.timeout(20):
            assert await fork.result() == {"a": [1, 2, 3, 4], "b": [1, 2, 3]}
        assert ran == {"ones": 1, "one": 4}
        await fork.jump("others")
        async with asyncio.timeout(20):
            await fork.result()
        await assert_whole(engine, fork)


async def test_a_stream_that_runs_beside_one_of_which_somebody_says_what_it_gave(store_url: str) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(fork_two_streams, a=2, b=3)
        await run.result()
        await run.jump("other", outputs=[7, 8])
        await run.result()

        await run.jump("ones")

        async with asyncio.timeout(20):
            assert await run.result() == {"a": [1, 2], "b": [7, 8]}
        await assert_whole(engine, run)


@pytest.mark.parametrize(("timeout", "seconds"), [(60, 60.0), (timedelta(minutes=1), 60.0), (None, None)])
async def test_a_fork_has_the_timeout_that_it_is_given(
    store_url: str, timeout: float | timedelta | None, seconds: float | None
) -> None:
    async with Engine(store_url) as engine:
        run = await engine.start(fork_chain, x=0, timeout=30, on_failure="finish")
        await run.result()

        fork, same = await run.fork(timeout=timeout), await run.fork()
        settings = (await fork.state()).settings

        assert (settings.timeout_seconds, settings.on_failure) == (seconds, "finish")
        assert (await same.state()).settings.timeout_seconds == 30
        with pytest.raises(ValueError, match="timeout=0 is no time above zero"):
            await run.fork(timeout=0)
        await assert_whole(engine, fork)
