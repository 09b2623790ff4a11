"""SIGTERM: what runs may end, nothing is left half done, and whoever continues does so at once."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from perdure import EngineSettings
from perdure.ids import RunId
from perdure.journal import events as e
from perdure.journal.states import NodeStatus, RunStatus
from perdure.store.shapes import RunDump
from tests.torture import checks
from tests.torture.processes import Child, Children, until
from tests.torture.programs import workloads
from tests.torture.programs.effects import Ledger
from tests.torture.programs.workloads import diamond_result

RUN_ID = RunId("r")
NUMBER = 5
WAIT_SECONDS = 30.0
TERMINATED = 128 + signal.SIGTERM
PROGRAMS = ("script", "command_line")


async def begin(children: Children, program: str, url: str, *, millis: int) -> Child:
    """Start or continue the run in a process of its own."""
    if program == "script":
        return await children.start("script", url, RUN_ID, str(NUMBER), str(millis))
    target = f"{workloads.__file__}:diamond"
    inputs = ("--input", f"number={NUMBER}", "--input", f"millis={millis}")
    return await children.start("command_line", "run", target, *inputs, "--run-id", RUN_ID, "--store", url, "--json")


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_terminated_process_finishes_its_bodies_and_lets_go(store_url: str, tmp_path: Path, program: str):
    ledger = Ledger(tmp_path / "ledger")
    async with Children(tmp_path, ledger.environment) as children:
        first = await begin(children, program, store_url, millis=700)
        await until_at_work(first, ledger)

        first.kill(signal.SIGTERM)
        assert await first.ended() == TERMINATED, first.log()
        left = await only_run(store_url)
        second = await begin(children, program, store_url, millis=700)
        began = time.monotonic()
        await until(lambda: ledger.count() > 1, WAIT_SECONDS, lambda: f"the run does not go on: {second.log()}")
        waited = time.monotonic() - began
        assert await second.ended() == 0, second.log()

    # The body that ran has ended, nothing else was begun, and the run is nobody's.
    assert {node.node_id: node.status for node in left.all_nodes if node.status is not NodeStatus.SCHEDULED} == {
        "top": NodeStatus.COMPLETED
    }
    assert (left.stored.run.status, left.stored.owner) == (RunStatus.RUNNING, None)
    dump = (await checks.assert_whole(store_url, ledger, children.pids))[RUN_ID]
    assert_completed(dump)
    assert ledger.count() == 4, "a body was begun twice"
    assert [claim.lost for claim in claims(dump)] == [False, False]
    print(f"continued within {waited:.2f} s")


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_second_signal_ends_the_process_at_once(store_url: str, tmp_path: Path, program: str):
    ledger = Ledger(tmp_path / "ledger")
    async with Children(tmp_path, ledger.environment) as children:
        first = await begin(children, program, store_url, millis=5_000)
        await until_at_work(first, ledger)

        began = time.monotonic()
        sent = 0
        while first.kill(signal.SIGTERM):
            sent += 1
            await asyncio.sleep(0.1)
        assert await first.ended() in (-signal.SIGTERM, TERMINATED)
        assert time.monotonic() - began < 2.0
        assert sent > 1

        second = await begin(children, program, store_url, millis=5_000)
        await until(lambda: ledger.count() > 1, WAIT_SECONDS, lambda: f"the run does not go on: {second.log()}")
        second.kill()
    dump = (await checks.assert_whole(store_url, ledger, children.pids))[RUN_ID]
    assert [claim.lost for claim in claims(dump)] == [False, True]


@pytest.mark.slow
async def test_a_body_that_outlasts_the_grace_period_is_left_behind(store_url: str, tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger")
    inputs = {"number": NUMBER, "millis": 3_000}
    async with Children(tmp_path, ledger.environment) as children, checks.opened(store_url) as store:
        first = await children.start_engine(store_url, EngineSettings(grace_seconds=0.3))
        await first.ask("start", workflow="diamond", run_id="quick", inputs={**inputs, "millis": 1})
        await first.ask("wait", run_id="quick")
        await first.ask("start", workflow="diamond", run_id=RUN_ID, inputs=inputs)
        await until(lambda: ledger.count() == 5, WAIT_SECONDS, lambda: f"nothing begins: {first.log()}")

        began = time.monotonic()
        first.tell("leave")
        assert await first.ended() == 0, first.log()
        assert time.monotonic() - began < 2.5
        left = await store.dump_run(RUN_ID)
        assert left is not None
        assert (left.stored.run.status, left.stored.owner) == (RunStatus.RUNNING, None)
        assert [row.pid for row in await store.list_engines()] == []

        second = await children.start_engine(store_url)
        await until(lambda: ledger.count() == 6, WAIT_SECONDS, lambda: f"the run does not go on: {second.log()}")
        second.kill()
    dump = (await checks.assert_whole(store_url, ledger, children.pids))[RUN_ID]
    assert [entry.event.reason for entry in dump.events if isinstance(entry.event, e.AttemptLost)] == [
        "the engine stopped"
    ]
    assert [claim.lost for claim in claims(dump)] == [False, False]
    assert dump.stored.run.recoveries == 0


async def until_at_work(child: Child, ledger: Ledger) -> None:
    """Wait until the first body runs and the process is prepared for signals."""
    await until(lambda: ledger.count() == 1, WAIT_SECONDS, lambda: f"nothing begins: {child.log()}")
    await until(lambda: child.catches(signal.SIGTERM), WAIT_SECONDS, "SIGTERM is not caught")


async def only_run(url: str) -> RunDump:
    async with checks.opened(url) as store:
        dump = await store.dump_run(RUN_ID)
    assert dump is not None
    return dump


def claims(dump: RunDump) -> list[e.RunClaimed]:
    return [entry.event for entry in dump.events if isinstance(entry.event, e.RunClaimed)]


def assert_completed(dump: RunDump) -> None:
    run = dump.stored.run
    assert run.status is RunStatus.COMPLETED
    assert run.outputs is not None
    assert bytes(run.outputs["output"]) == str(diamond_result(NUMBER)).encode()
