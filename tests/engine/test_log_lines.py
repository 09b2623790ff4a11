"""What bodies log is best effort: a line that cannot be kept is lost alone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from perdure import Engine, node, workflow
from perdure.engine.attempts.loglines import LogKeeper, LogLines
from perdure.errors import StoreLocked
from perdure.ids import ROOT_BRANCH, NodeId, RunId, Seq
from perdure.store.opening import open_store
from perdure.store.shapes import LogLine
from perdure.testing.loop import VirtualClock, run_virtual
from perdure.testing.proxy import StoreProxy
from tests.crash.backends import opened_store
from tests.engine.engines import engine_on


@node
async def rests(x: int) -> int:
    await asyncio.sleep(1)
    return x


@workflow
def resting(x: int) -> int:
    return rests(x)


def line(message: Any, **fields: Any) -> LogLine:
    return LogLine(
        run_id=RunId("run"),
        branch_id=ROOT_BRANCH,
        node_id=NodeId("rests"),
        attempt=1,
        at=0,
        level="INFO",
        message=message,
        fields=fields,
    )


@pytest.mark.parametrize(
    "bad", [line("half \ud800"), line({"a": 1}), line("x", field="\ud800")], ids=["text", "object", "field"]
)
async def test_a_line_that_no_database_can_hold_is_lost_alone(store_url: str, bad: LogLine):
    async with Engine(store_url) as engine:
        run = await engine.start(resting, run_id="run", x=1)
        for written in (line("before"), line("beside"), bad, line("after")):
            engine.hub.log_lines.append(written)

        assert await run.result() == 1
        kept = await engine.store.load_logs(RunId("run"), after=0, limit=10)
        # Whether something of the bad one is kept is the store's affair.
        good = [entry.message for _, entry in kept if entry.message in ("before", "beside", "after")]
        assert good == ["before", "beside", "after"]


async def test_a_store_that_cannot_be_used_costs_the_lines_and_nothing_else(sqlite_url: str):
    class Locked(StoreProxy):
        async def passing(self, name, call, *args):
            if name == "append_logs":
                raise StoreLocked("not now")
            return await call()

    store = await open_store(sqlite_url)
    lines = LogLines(10)
    lines.append(line("one"))

    await LogKeeper(lines, Locked(store).as_store, VirtualClock()).flush()

    assert lines.take() == []
    await store.close()


def test_a_bug_in_work_beside_the_runs_harms_no_run(sqlite_url: str, caplog: pytest.LogCaptureFixture):
    """Everything that the engine does beside its runs raises, once."""

    class Buggy(StoreProxy):
        def __init__(self, inner: Any) -> None:
            super().__init__(inner)
            self.left = {"wait_for_news", "list_engines", "renew_engine", "append_logs"}

        async def passing(self, name, call, *args):
            if name in self.left:
                self.left.discard(name)
                raise RuntimeError(f"a bug in {name}")
            return await call()

    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            buggy = Buggy(store)
            async with engine_on(buggy.as_store) as engine:
                run = await engine.start(resting, x=2)
                engine.hub.log_lines.append(line("lost"))
                await asyncio.sleep(60)
                assert await run.result() == 2
                assert buggy.left == set()
                assert await (await engine.start(resting, x=3)).result() == 3
                await run.load()
                assert await store.load_events(run.run_id, after=Seq(0), limit=1)

    with caplog.at_level(logging.CRITICAL):
        run_virtual(main())
