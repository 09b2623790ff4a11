"""Engines on one store, of which a random one is killed again and again while clients start runs."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from pathlib import Path

import pytest

from perdure import EngineSettings
from tests.torture import checks
from tests.torture.load import Clients, assert_none_lost, until_all_end
from tests.torture.processes import START_SECONDS, Child, Children, ProcessGone, deadline, until
from tests.torture.programs.effects import Ledger

SETTINGS = EngineSettings(recovery_seconds=0.5, poll_seconds=0.5)
END_SECONDS = 90.0
CLIENTS = 10


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_two_engines_on_sqlite_are_killed_20_times(sqlite_url: str, tmp_path: Path):
    await torture(sqlite_url, tmp_path, engines=2, kills=20, runs=200, every=(0.2, 1.6), pause_seconds=0.15)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_three_engines_on_postgres_are_killed_20_times(postgres_url: str, tmp_path: Path):
    await torture(postgres_url, tmp_path, engines=3, kills=20, runs=200, every=(0.2, 1.6), pause_seconds=0.15)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_two_engines_on_sqlite_are_killed_for_ten_minutes(sqlite_url: str, tmp_path: Path):
    await torture(
        sqlite_url, tmp_path, engines=2, kills=200, runs=1_000, every=(0.2, 3.0), seconds=600, pause_seconds=1.0
    )


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_three_engines_on_postgres_are_killed_for_ten_minutes(postgres_url: str, tmp_path: Path):
    await torture(
        postgres_url, tmp_path, engines=3, kills=200, runs=1_000, every=(0.2, 3.0), seconds=600, pause_seconds=1.0
    )


async def torture(
    url: str,
    folder: Path,
    *,
    engines: int,
    kills: int,
    runs: int,
    every: tuple[float, float],
    pause_seconds: float,
    seconds: float = 0.0,
) -> None:
    """Kill at least so often, while at least so many runs are started, for at least so long."""
    seed = checks.chosen_seed()
    print(f"seed {seed}")
    ledger = Ledger(folder / "ledger")
    async with Children(folder, ledger.environment) as children, checks.opened(url) as store:
        crowd = Crowd(children, url, seed)
        clients = Clients(lambda: crowd.ready, seed=seed)
        async with deadline(seconds + 180, lambda: f"{crowd.story()}; seed {seed}"), asyncio.TaskGroup() as group:
            for _ in range(engines):
                crowd.add(group)
            for _ in range(CLIENTS):
                group.create_task(clients.work(pause_seconds=pause_seconds))
            began = time.monotonic()
            while (
                crowd.kills < kills
                or crowd.kills_at_work < kills // 2
                or len(clients.acknowledged) < runs
                or time.monotonic() - began < seconds
            ):
                await asyncio.sleep(crowd.chance.uniform(*every))
                await crowd.kill_one(group)
            clients.stop()
            await crowd.settle(engines)
        faults_over = time.monotonic()
        await until_all_end(store, END_SECONDS, lambda: f"{crowd.story()}; seed {seed}")
        took = time.monotonic() - faults_over

    dumps = await checks.assert_whole(url, ledger, children.pids)
    assert_none_lost(dumps, clients)
    taken = sum(len(checks.takeovers(dump)) for dump in dumps.values())
    # Not vacuous: most kills of engines that were ready hit runs in progress, and clients noticed some of them.
    assert taken >= crowd.kills_at_work, f"{taken} runs were taken over in {crowd.kills_at_work} kills"
    assert clients.repeated["process gone"] > 0
    print(
        f"{crowd.kills} kills ({crowd.kills_at_work} of engines at work), {len(dumps)} runs, {taken} takeovers, starts "
        f"repeated: {dict(clients.repeated)}, all ended {took:.1f} s after the last kill"
    )


class Crowd:
    """Engines in processes; whoever is killed is replaced."""

    def __init__(self, children: Children, url: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ready: list[Child] = []
        self.kills = 0
        self.kills_at_work = 0
        self._children = children
        self._url = url
        self._engines: list[Child] = []
        self._lives: list[asyncio.Task[None]] = []

    def add(self, group: asyncio.TaskGroup) -> None:
        self._lives.append(group.create_task(self._live()))

    async def settle(self, count: int) -> None:
        """Wait until so many engines are at work, and leave them to it."""
        await until(lambda: len(self.ready) == count, START_SECONDS, lambda: f"not all engines start: {self.story()}")
        for life in self._lives:
            life.cancel()

    async def kill_one(self, group: asyncio.TaskGroup) -> None:
        """Kill any engine, be it still starting, and start another one in its place."""
        if not self._engines:
            return
        at_work = [engine for engine in self._engines if engine in self.ready]
        victim = self.chance.choice(at_work if at_work and self.chance.random() < 0.7 else self._engines)
        self._engines.remove(victim)
        self.kills += 1
        self.kills_at_work += victim in self.ready
        victim.kill()
        assert await victim.ended() == -signal.SIGKILL, victim.log()[-2_000:]
        self.add(group)

    def story(self) -> str:
        return "\n".join(f"{engine.name}: {engine.log()[-1_500:]}" for engine in self._engines)

    async def _live(self) -> None:
        engine = await self._children.launch_engine(self._url, SETTINGS)
        self._engines.append(engine)
        try:
            await engine.ready()
        except ProcessGone:
            return
        self.ready.append(engine)
        await engine.gone()
        self.ready.remove(engine)
