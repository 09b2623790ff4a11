"""Runs with streams, continued by one process after the other, each of which is killed while it is at work.

What must hold after each kill: of the items that were called for, at most as many have no entry as calls may be made at once,
and only those are called for again. What must hold in the end: the result is that of a run that nobody has disturbed.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from perdure.engine.inspect import verify_run
from perdure.ids import RunId
from perdure.journal.states import RunStatus
from tests.torture import checks
from tests.torture.processes import Child, Children, until
from tests.torture.programs.effects import Ledger
from tests.torture.programs.streams import CONCURRENCY, Called, calls_in, result_of

ITEMS = 1_000
TANGLED_ITEMS = 120
RECOVERIES = 5
MAPS = ["async_map", "thread_map", "thread_generator"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPS)
async def test_a_map_killed_at_700_calls_for_300_more(name: str, store_url: str, tmp_path: Path):
    async with Children(tmp_path, Ledger(tmp_path / "ledger").environment) as children:
        murderer = Murderer(children, store_url, tmp_path, name, ITEMS)
        await murderer.kill_at(700)
        await murderer.finish()

    assert ITEMS <= len(murderer.calls()) <= ITEMS + CONCURRENCY


@pytest.mark.slow
async def test_an_async_map_is_killed_20_times(sqlite_url: str, tmp_path: Path):
    await survive("async_map", sqlite_url, tmp_path, ITEMS, kills=20)


@pytest.mark.slow
async def test_a_map_in_threads_is_killed_20_times(postgres_url: str, tmp_path: Path):
    await survive("thread_map", postgres_url, tmp_path, ITEMS, kills=20)


@pytest.mark.slow
async def test_a_tangle_of_streams_is_killed_20_times(sqlite_url: str, tmp_path: Path):
    await survive("tangle", sqlite_url, tmp_path, TANGLED_ITEMS, kills=20)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", [*MAPS, "tangle"])
async def test_streams_are_killed_200_times(name: str, store_url: str, tmp_path: Path):
    for turn in range(5):
        items = TANGLED_ITEMS * 3 if name == "tangle" else ITEMS
        await survive(name, store_url, tmp_path, items, kills=40, run_id=f"{name}-{turn}")


async def survive(name: str, url: str, folder: Path, items: int, *, kills: int, run_id: str = "the-run") -> None:
    seed = checks.chosen_seed()
    print(f"seed {seed}")
    ledger = folder / f"{run_id}.ledger"
    async with Children(folder, Ledger(ledger).environment) as children:
        murderer = Murderer(children, url, folder, name, items, run_id=run_id, ledger=ledger, seed=seed)
        for left in range(kills, 0, -1):
            await murderer.kill_at_random(left)
        await murderer.finish()
    assert murderer.progressed >= kills // 2, f"most of the kills hit a run that had done nothing; seed {seed}"


class Murderer:
    """Kills whoever continues the run, and looks at what was durable then."""

    def __init__(
        self,
        children: Children,
        url: str,
        folder: Path,
        name: str,
        items: int,
        *,
        run_id: str = "the-run",
        ledger: Path | None = None,
        seed: int = 0,
    ) -> None:
        self.progressed = 0
        """How many of those who were killed had recorded something."""
        self._children = children
        self._url = url
        self._folder = folder
        self._name = name
        self._items = items
        self._run_id = run_id
        self._ledger = ledger or folder / "ledger"
        self._seed = seed
        self._chance = random.Random(seed)
        self._recorded: set[tuple[str, int]] = set()
        self._recoveries = 0
        self._calls_expected = self._calls_in_all()

    def calls(self) -> list[Called]:
        return calls_in(self._ledger.read_text(encoding="utf-8"))

    async def kill_at(self, calls: int) -> None:
        """Kill whoever continues the run when so many calls were made in all."""
        before = len(self.calls())
        child = await self._continue()
        await self._at_work(child, calls)
        await self._kill(child, before)

    async def kill_at_random(self, left: int) -> None:
        """Kill whoever continues the run at a place such that the run lasts until the last kill."""
        before = len(self.calls())
        child = await self._continue()
        fair_share = (self._calls_expected - len(self._recorded)) / (left + 1)
        if self._recoveries < RECOVERIES - 2:
            await self._at_work(child, before + round(self._chance.uniform(0.0, 1.6) * fair_share))
            await asyncio.sleep(self._chance.uniform(0.0, 0.01))
        else:
            # Losses without progress are limited: let something be recorded.
            await self._at_work(child, before + max(4 * CONCURRENCY, round(fair_share)))
        await self._kill(child, before)

    async def finish(self) -> None:
        """Let the run end, and judge it."""
        before = len(self.calls())
        child = await self._continue()
        said = await child.heard("result", 120)
        assert await child.ended() == 0
        self._assert_nothing_repeated(before)
        assert said["result"] == result_of(self._name, self._items), f"seed {self._seed}"
        async with checks.opened(self._url) as store:
            assert await verify_run(store, self._run_id) == []
        self._assert_keys()

    async def _continue(self) -> Child:
        return await self._children.start("streams", self._url, self._run_id, self._name, str(self._items))

    async def _at_work(self, child: Child, calls: int) -> None:
        await until(
            lambda: self._ledger.read_bytes().count(b"\n") >= calls or not child.is_alive,
            60,
            lambda: f"the run does not go on; seed {self._seed}: {child.log()[-2_000:]}",
        )

    async def _kill(self, child: Child, before: int) -> None:
        assert child.kill(), f"it was over; seed {self._seed}: {child.log()[-2_000:]}"
        assert await child.ended() == -signal.SIGKILL, f"it was over; seed {self._seed}"
        self._assert_nothing_repeated(before)
        await self._look(before)

    async def _look(self, before: int) -> None:
        """Read what is durable while nobody is at work."""
        async with checks.opened(checks.copy_of_dead(self._url, self._folder / "dead")) as store:
            stored = await store.load_run(RunId(self._run_id))
            ranges = await store.load_ranges(RunId(self._run_id))
            violations = await verify_run(store, self._run_id) if stored is not None else []
        if stored is None:  # it died before it had begun
            return
        assert violations == [], f"seed {self._seed}"
        assert stored.run.status is RunStatus.RUNNING, f"{stored.run.status}; seed {self._seed}"
        called = {call.node_id for call in self.calls()}
        recorded = {
            (found.node_id, position)
            for found in ranges
            if found.node_id in called
            for position in range(found.position, found.position + found.count)
        }
        completed = {node.node_id for node in stored.nodes if node.status.value == "completed"}
        lost = {entry for entry in self._recorded - recorded if entry[0] not in completed}
        assert not lost, f"entries were lost: {sorted(lost)[:10]}; seed {self._seed}"
        in_flight = Counter(
            call.node_id
            for call in set(self.calls()[before:])
            if (call.node_id, call.item) not in recorded and call.node_id not in completed
        )
        for node_id, count in in_flight.items():
            assert count <= CONCURRENCY, f"{count} items of {node_id} run again; seed {self._seed}"
        self.progressed += len(recorded | self._recorded) > len(self._recorded)
        self._recorded |= recorded
        self._recoveries = stored.run.recoveries

    def _assert_nothing_repeated(self, before: int) -> None:
        again = {(call.node_id, call.item) for call in self.calls()[before:]} & self._recorded
        assert not again, f"{sorted(again)[:10]} were called for again though recorded; seed {self._seed}"

    def _assert_keys(self) -> None:
        """Every item of a node has one key, however often it was called for, and no other has it."""
        keys = {(call.node_id, call.item, call.key) for call in self.calls()}
        items = {(call.node_id, call.item) for call in self.calls()}
        assert len(keys) == len(items) == len({call.key for call in self.calls()}) == self._calls_expected

    def _calls_in_all(self) -> int:
        if self._name != "tangle":
            return self._items
        return 5 * self._items + sum(x % 3 for x in range(self._items))
