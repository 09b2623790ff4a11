"""Attempts: how often, how soon and for which errors a body is tried again, and how long it may take."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from perdure import Backoff, Context, collect, node, workflow
from perdure.errors import RunFailed
from perdure.journal import events as e
from perdure.journal.states import NodeStatus, RunStatus
from perdure.testing.loop import VirtualClock, run_virtual
from tests.engine.engines import assert_whole, counted, engine_on, log_of

NO_PAUSE = Backoff(first=timedelta(0), jitter=False)


class Unlucky(Exception):
    pass


@node(retries=3, backoff=Backoff(first=timedelta(seconds=2), factor=3, cap=timedelta(seconds=10), jitter=False))
async def fails_until_fourth(ctx: Context) -> int:
    if ctx.attempt < 4:
        raise Unlucky(f"attempt {ctx.attempt}")
    return ctx.attempt


@node(retries=2, backoff=NO_PAUSE)
async def always_fails(ctx: Context) -> int:
    raise Unlucky(f"attempt {ctx.attempt}")


@node(retries=5, backoff=NO_PAUSE, retry_on=(ConnectionError, "Unlucky"))
async def fails_as_told(ctx: Context, errors: list[str]) -> int:
    kinds = {"connection": ConnectionResetError, "unlucky": Unlucky, "value": ValueError}
    if ctx.attempt <= len(errors):
        raise kinds[errors[ctx.attempt - 1]](errors[ctx.attempt - 1])
    return ctx.attempt


@node(retries=1, backoff=NO_PAUSE, timeout=5.0)
async def slow_at_first(ctx: Context) -> str:
    await asyncio.sleep(100 if ctx.attempt == 1 else 1)
    return "done"


@node
async def needs_memory(ctx: Context) -> int:
    raise MemoryError("no more")


@node(retries=2, backoff=NO_PAUSE)
async def returns_what_cannot_be_stored(ctx: Context) -> object:
    return object()


@workflow
def pausing() -> int:
    return fails_until_fourth()


@workflow
def hopeless() -> int:
    return always_fails()


@workflow
def choosy(errors: list[str]) -> int:
    return fails_as_told(errors)


@workflow
def limited() -> str:
    return slow_at_first()


@workflow
def starved() -> int:
    return needs_memory()


@workflow
def unstorable() -> object:
    return returns_what_cannot_be_stored()


def test_pauses_grow_up_to_their_cap(sqlite_url: str):
    async def main() -> list[float]:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(pausing)
            assert await run.result() == 4
            await assert_whole(engine, run)
            log = await log_of(run)
        failed = [entry.at for entry in log if isinstance(entry.event, e.NodeFailed)]
        started = [entry.at for entry in log if isinstance(entry.event, e.NodeStarted)]
        return [(start - fail) / 1_000_000 for fail, start in zip(failed, started[1:], strict=True)]

    assert run_virtual(main()) == pytest.approx([2, 6, 10], abs=0.1)


def test_a_node_fails_when_its_budget_is_used_up(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(hopeless)
            with pytest.raises(RunFailed) as failure:
                await run.result()

            assert failure.value.node_id == "always_fails"
            assert failure.value.message == "attempt 3"
            assert failure.value.error_type.endswith("Unlucky")
            finals = [entry.event.final for entry in await log_of(run) if isinstance(entry.event, e.NodeFailed)]
            assert finals == [False, False, True]
            await assert_whole(engine, run)

    run_virtual(main())


@pytest.mark.parametrize(
    ("errors", "attempts"),
    [(["connection", "unlucky"], 3), (["connection", "value"], None), (["value"], None), ([], 1)],
)
def test_only_chosen_errors_are_worth_another_attempt(sqlite_url: str, errors: list[str], attempts: int | None):
    async def main() -> int | None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(choosy, errors=errors)
            state = await run.wait()
            await assert_whole(engine, run)
            return await run.result() if state.status is RunStatus.COMPLETED else None

    assert run_virtual(main()) == attempts


def test_an_attempt_that_takes_too_long_is_stopped_and_tried_again(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(limited)
            assert await run.result() == "done"
            failures = [entry.event for entry in await log_of(run) if isinstance(entry.event, e.NodeFailed)]
            assert [failure.error.error_class for failure in failures] == [e.ErrorClass.TRANSIENT]
            assert "5 s" in failures[0].error.message
            stored = await run.load()
            assert (stored.run.ended_at - stored.run.started_at) / 1_000_000 == pytest.approx(6, abs=0.2)
            await assert_whole(engine, run)

    run_virtual(main())


def test_running_out_of_memory_is_tried_again_without_being_asked_for(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(starved)
            with pytest.raises(RunFailed):
                await run.result()
            assert (await counted(run))[e.NodeFailed] == 3
            failed = (await run.load()).run.error
            assert failed.error_class is e.ErrorClass.RESOURCE
            await assert_whole(engine, run)

    run_virtual(main())


def test_a_result_that_cannot_be_stored_fails_at_once_and_says_where(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(unstorable)
            with pytest.raises(RunFailed, match="returns_what_cannot_be_stored"):
                await run.result()
            assert (await counted(run))[e.NodeFailed] == 1
            (node_state,) = (await run.load()).nodes
            assert node_state.status is NodeStatus.FAILED
            await assert_whole(engine, run)

    run_virtual(main())


def test_a_pause_goes_on_in_another_engine(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(pausing, run_id="run")
            await asyncio.sleep(4)
            await engine.stop()
        async with engine_on(sqlite_url) as engine:
            run = await engine.get("run")
            assert await run.result() == 4
            log = await log_of(run)
            assert not [entry for entry in log if isinstance(entry.event, e.AttemptLost)]
            await assert_whole(engine, run)

    run_virtual(main())


def test_a_pause_is_no_longer_than_asked_for_though_another_clock_set_it(sqlite_url: str):
    """The engine that decided on the pause is two hours ahead of the one that takes the run over."""

    async def main() -> None:
        async with engine_on(sqlite_url, clock=VirtualClock(wall_offset_seconds=7_200)) as engine:
            await engine.start(pausing, run_id="run")
            await asyncio.sleep(4)
            await engine.stop()
        async with engine_on(sqlite_url) as engine:
            begun = asyncio.get_running_loop().time()
            run = await engine.get("run")
            assert await run.result() == 4
            assert asyncio.get_running_loop().time() - begun < 30
            await assert_whole(engine, run)

    run_virtual(main())


called: list[int] = []


@node(retries=2, backoff=Backoff(first=timedelta(seconds=10), jitter=False))
async def item_fails_once(ctx: Context, x: int) -> int:
    called.append(ctx.attempt)
    if ctx.attempt == 1:
        raise Unlucky("the first attempt")
    return x


@workflow
def per_item(xs: list[int]) -> list[int]:
    return collect(item_fails_once.map(xs))


def test_an_item_that_pauses_before_its_next_attempt_holds_up_no_engine_that_stops(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            run = await engine.start(per_item, xs=[7])
            await asyncio.sleep(1)
            began = asyncio.get_running_loop().time()
            await engine.stop()
            assert asyncio.get_running_loop().time() - began < 2
        assert called == [1]
        async with engine_on(sqlite_url) as engine:
            run = await engine.get(run.run_id)
            assert await run.result() == [7]
            assert (await counted(run))[e.ItemFailed] == 1
            await assert_whole(engine, run)

    called.clear()
    run_virtual(main())
    assert called == [1, 2]
