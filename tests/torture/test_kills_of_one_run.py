"""One run of 300 nodes, continued by one process after the other, each of which is killed while it is at work."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.ids import RunId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.shapes import RunDump
from tests.torture import checks
from tests.torture.processes import Child, Children, until
from tests.torture.programs.effects import Ledger
from tests.torture.programs.workloads import Web

SIZE = 300
RUN_ID = "the-run"
TAKEOVER_SECONDS = 10.0
"""Far below the lease of 30 s: a process that is gone is not waited for. The rest is what a busy machine may take."""
RECOVERIES = 5


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_run_survives_50_kills_on_sqlite(sqlite_url: str, tmp_path: Path):
    await survive(sqlite_url, tmp_path, kills=50)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_run_survives_20_kills_on_postgres(postgres_url: str, tmp_path: Path):
    await survive(postgres_url, tmp_path, kills=20)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_runs_survive_500_kills(store_url: str, tmp_path: Path):
    for turn in range(10):
        await survive(store_url, tmp_path, kills=50, run_id=f"{RUN_ID}-{turn}")


async def survive(url: str, folder: Path, *, kills: int, run_id: str = RUN_ID) -> None:
    seed = checks.chosen_seed()
    print(f"seed {seed}")
    ledger = Ledger(folder / "ledger")
    async with Children(folder, ledger.environment) as children:
        murderer = Murderer(children, url, folder, ledger, run_id, seed)
        for left in range(kills, 0, -1):
            await murderer.kill_one(left)
        code, said = await murderer.finish()

    dumps = await checks.assert_whole(url, ledger)
    dump = dumps[run_id]
    assert (code, said["result"]) == (0, murderer.web.result()), f"seed {seed}"
    assert dump.stored.run.status is RunStatus.COMPLETED
    murderer.assert_not_vacuous(dump, kills)


class Murderer:
    """Kills whoever continues the run, at a moment drawn from the seed, and looks at what was durable then."""

    def __init__(self, children: Children, url: str, folder: Path, ledger: Ledger, run_id: str, seed: int) -> None:
        self.web = Web(seed, size=SIZE)
        self._children = children
        self._url = url
        self._folder = folder
        self._ledger = ledger
        self._run_id = run_id
        self._seed = seed
        self._chance = random.Random(seed)
        self._durable: set[str] = set()
        self._events: tuple[e.Recorded, ...] = ()
        self._recoveries = 0
        self._lives = 0
        self._lives_with_progress = 0
        self._waits: list[float] = []

    async def kill_one(self, left: int) -> None:
        """Let a process continue the run, kill it at work, and check that nothing that was durable is done again."""
        before = self._ledger.count()
        child = await self._continue()
        began = time.monotonic()
        await self._at_work(child, before + 1)
        self._waits.append(time.monotonic() - began)
        if self._recoveries < RECOVERIES - 2 and self._chance.random() < 0.3:
            # Sooner or later after the first body has begun, whatever happens meanwhile.
            await asyncio.sleep(self._chance.uniform(0.0, 0.03))
        else:
            fair_share = (SIZE - len(self._durable)) / (left + 1)
            await self._at_work(child, before + 1 + self._budget(fair_share))
        assert child.kill(), f"over with {left} kills left; seed {self._seed}: {child.log()[-2_000:]}"
        assert await child.ended() == -signal.SIGKILL, f"over with {left} kills left; seed {self._seed}"
        await self._look(before)

    async def finish(self) -> tuple[int, dict[str, Any]]:
        before = self._ledger.count()
        child = await self._continue()
        said = await child.heard("result", 120)
        code = await child.ended()
        self._assert_nothing_repeated(before)
        return code, said

    def assert_not_vacuous(self, dump: RunDump, kills: int) -> None:
        """I32: every kill hit a run in progress and was noticed, and progress has reset the count of losses."""
        lost = [entry.event for entry in dump.events if isinstance(entry.event, e.AttemptLost)]
        failures = sum(node.failures for node in dump.all_nodes)
        claims = checks.takeovers(dump)
        assert self._lives == kills + 1
        assert len(claims) == kills, f"{len(claims)} takeovers of {kills} kills"
        assert len(lost) >= kills // 2, f"only {len(lost)} attempts were lost in {kills} kills"
        assert failures > 0
        # More losses than a run without progress may have: it is progress that has saved it.
        assert self._lives_with_progress > RECOVERIES
        assert max(self._waits) < TAKEOVER_SECONDS
        print(
            f"{kills} kills, {len(lost)} attempts lost, {failures} failed, {self._lives_with_progress} lives with progress, "
            f"taken over within {max(self._waits):.2f} s (mean {sum(self._waits) / len(self._waits):.2f} s)"
        )

    def _budget(self, fair_share: float) -> int:
        """How many more bodies may begin in this life: such that the run lasts until the last kill."""
        if self._recoveries >= RECOVERIES - 2:
            # Losses without progress are limited: let something complete.
            return max(10, round(fair_share))
        return round(self._chance.uniform(0.0, 1.6) * fair_share)

    async def _continue(self) -> Child:
        self._lives += 1
        return await self._children.start("one_run", self._url, self._run_id, str(self._seed), str(SIZE))

    async def _at_work(self, child: Child, effects: int) -> None:
        await until(
            lambda: self._ledger.count() >= effects or not child.is_alive,
            60,
            lambda: f"the run does not go on; seed {self._seed}: {child.log()[-2_000:]}",
        )

    async def _look(self, before: int) -> None:
        """Read what is durable while nobody is at work."""
        self._assert_nothing_repeated(before)
        async with checks.opened(checks.copy_of_dead(self._url, self._folder / "dead")) as store:
            dump = await store.dump_run(RunId(self._run_id))
        assert dump is not None
        assert dump.stored.run.status is RunStatus.RUNNING, f"{dump.stored.run.status}; seed {self._seed}"
        # I3: what was in the log once stays there, byte by byte.
        assert msgspec.json.encode(dump.events[: len(self._events)]) == msgspec.json.encode(self._events)
        completed = checks.completed_nodes(dump)
        assert self._durable <= completed, f"completions were lost; seed {self._seed}"
        self._lives_with_progress += completed > self._durable
        self._durable, self._events = completed, dump.events
        self._recoveries = dump.stored.run.recoveries

    def _assert_nothing_repeated(self, before: int) -> None:
        again = {effect.node_id for effect in self._ledger.effects()[before:]} & self._durable
        assert not again, f"{sorted(again)} ran again though their completion was durable; seed {self._seed}"
