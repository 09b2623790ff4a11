"""Waits that are recorded together with the suspension that follows on their heels: what is on the disk by when, and for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Context, Engine, node, workflow
from perdure.journal.states import WaitStatus
from perdure.store.base import Store
from perdure.store.transitions import Transition
from perdure.testing.loop import run_virtual
from perdure.testing.proxy import StoreProxy
from tests.crash.backends import opened_store
from tests.engine.engines import assert_whole, engine_on
from tests.engine.test_waiting import answer_all, asked, seldom_looking

COLD = 0.0
COMMIT_SECONDS = 1.0

settled: set[str] = set()
"""The signals that were given to somebody, durably."""
went_on: list[tuple[str, bool]] = []
"""With which signals bodies went on, and whether that was durable by then."""


@pytest.fixture(autouse=True)
def nothing_so_far() -> None:
    settled.clear()
    went_on.clear()


class Slow(StoreProxy):
    """Takes a while for each commit, and notes what is durable after it."""

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name != "commit":
            return await call()
        await asyncio.sleep(COMMIT_SECONDS)
        answer = await call()
        transitions: list[Transition] = args[0]
        for transition in transitions:
            settled.update(
                wait.signal for wait in transition.waits if wait.status is WaitStatus.SETTLED and wait.signal
            )
        return answer


@node
async def takes_its_time(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return 1


@node
async def goes_on_with(ctx: Context, name: str, _after: int) -> str:
    value = await ctx.wait_for(name)
    went_on.append((name, name in settled))
    return value


@workflow
def signalled_late(seconds: float, name: str) -> str:
    return goes_on_with(name, takes_its_time(seconds))


def test_a_body_goes_on_with_a_signal_when_that_is_durable(sqlite_url: str) -> None:
    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            await in_front(Slow(store).as_store)

    async def in_front(store: Store) -> None:
        async with engine_on(store, hibernate_after=COLD) as engine:
            run = await engine.start(signalled_late, seconds=20.0, name="more")
            await run.signal("more", "yes")
            assert await run.result() == "yes"
            assert went_on == [("more", True)]
            await assert_whole(engine, run)

    run_virtual(main())


@node
async def asks_beside(ctx: Context) -> str:
    return await ctx.ask("Well?")


@workflow
def asked_beside_work(seconds: float) -> list[Any]:
    return [asks_beside(), takes_its_time(seconds)]


def test_a_question_can_be_seen_while_others_work_however_little_is_recorded(sqlite_url: str) -> None:
    async def main(engine: Engine) -> None:
        run = await engine.start(asked_beside_work, seconds=1_000.0, durability="exit")
        await asked(run, seconds=10)
        await answer_all(run)
        assert await run.result() == ["WELL?", 1]
        await assert_whole(engine, run)

    seldom_looking(sqlite_url, main, hibernate_after=COLD)
