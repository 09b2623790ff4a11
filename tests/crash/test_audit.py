"""Runs whose logs are written on the side: a crash at every commit, in each of six ways, on both databases.

Their logs have gaps after that. What was committed is gathered beside the database, and by it every invariant must hold that
holds for other runs: state and outputs are exact, and nothing that was recorded as done is done again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perdure.ids import RunId
from perdure.testing.crashes import CrashKind, CrashPlan
from perdure.testing.loop import run_virtual
from perdure.testing.process import Dead, Process
from perdure.testing.proxy import StoreProxy
from perdure.testing.world import drive
from tests.crash.backends import opened_world
from tests.crash.test_every_commit import REFERENCES, crash_everywhere
from tests.crash.test_waits import crash_everywhere as crash_while_waiting

pytestmark = pytest.mark.slow

KINDS = tuple(CrashKind)


class WithoutLog(StoreProxy):
    """Has no log that anybody could write or read, of whatever run."""

    async def passing(self, name: str, call: Callable[[], Awaitable[Any]], *args: Any) -> Any:
        if name == "append_events":
            return None
        assert name not in ("load_events", "list_segments"), "somebody has read the log of a run"
        return await call()


@pytest.mark.parametrize("name", ["chain", "retry", "steps_and_checkpoints", "mapped", "item_retries", "checkpointing"])
def test_a_crash_at_any_commit_changes_nothing(name: str, store_url: str, tmp_path: Path) -> None:
    print(crash_everywhere(store_url, tmp_path, REFERENCES[name], KINDS, journal="audit"))


@pytest.mark.parametrize("hibernate_after", [0.0, 5.0], ids=["cold", "warm"])
@pytest.mark.parametrize("name", ["asking", "waiting_for_signals"])
def test_a_crash_while_it_waits_changes_nothing(
    name: str, hibernate_after: float, store_url: str, tmp_path: Path
) -> None:
    print(crash_while_waiting(store_url, tmp_path, name, hibernate_after, KINDS, journal="audit"))


@pytest.mark.parametrize("name", ["chain", "mapped", "item_retries"])
def test_whoever_takes_a_run_over_does_not_read_its_log(name: str, store_url: str, tmp_path: Path) -> None:
    reference, run_id = REFERENCES[name], RunId("run")

    async def main() -> list[str]:
        async with opened_world(store_url, tmp_path, journal="audit") as world:
            plans = [CrashPlan(at=at, kind=CrashKind.AFTER) for at in (1, 2, 3)]
            for plan in (*plans, None):
                process = Process("without a log")
                door = world.door(process, plan)
                door.inner = WithoutLog(door.inner).as_store
                with suppress(Dead):
                    await process.run(world.engine(door), lambda engine: drive(engine, reference, run_id))
            outcome, problems = await world.judge(reference, run_id)
            assert outcome.outputs is not None
            dump = await world.store.dump_run(run_id)
            assert dump is not None
            assert dump.events == ()
            return problems

    assert run_virtual(main()) == []
