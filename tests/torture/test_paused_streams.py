"""A map of 1,000 items, paused again and again and each time resumed in another process: nothing is lost, nothing doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.engine.inspect import verify_run
from perdure.ids import CommandId, RunId
from perdure.journal.states import RunStatus
from perdure.store.shapes import Command
from tests.torture import checks
from tests.torture.processes import Child, Children, until
from tests.torture.programs.effects import Ledger
from tests.torture.programs.streams import calls_in, result_of

ITEMS = 1_000
PAUSES = (100, 300, 500)
"""After how many calls the run is paused."""
RUN_ID = RunId("the-run")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["async_map", "thread_map"])
async def test_a_map_is_paused_and_resumed_in_another_process(name: str, store_url: str, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.touch()
    async with Children(tmp_path, Ledger(ledger).environment) as children:
        for number, calls in enumerate(PAUSES):
            child = await children.start("streams", store_url, RUN_ID, name, str(ITEMS))
            await called_for(ledger, calls, child)
            await tell(store_url, "pause", number)
            assert await child.ended() != 0, "whoever waits for a run hears that it was paused"
            assert await status_of(store_url) is RunStatus.PAUSED, child.log()[-2_000:]
            begun = ledger.read_bytes().count(b"\n")
            assert calls <= begun < ITEMS
            await tell(store_url, "resume", number)
        child = await children.start("streams", store_url, RUN_ID, name, str(ITEMS))
        said = await child.heard("result", 120)
        assert await child.ended() == 0

    assert said["result"] == result_of(name, ITEMS)
    assert sorted(call.item for call in calls_in(ledger.read_text(encoding="utf-8"))) == list(range(ITEMS))
    async with checks.opened(store_url) as store:
        assert await verify_run(store, RUN_ID) == []


async def called_for(ledger: Path, calls: int, child: Child) -> None:
    await until(
        lambda: ledger.read_bytes().count(b"\n") >= calls or not child.is_alive,
        60,
        lambda: f"the run does not go on: {child.log()[-2_000:]}",
    )


async def tell(url: str, kind: str, number: int) -> None:
    """Have the run told something by somebody who drives nothing."""
    async with checks.opened(url) as store:
        await store.add_command(Command(command_id=CommandId(f"{kind} {number}"), run_id=RUN_ID, kind=kind))


async def status_of(url: str) -> RunStatus | None:
    async with checks.opened(url) as store:
        state = await store.load_state(RUN_ID)
    return None if state is None else state.status
