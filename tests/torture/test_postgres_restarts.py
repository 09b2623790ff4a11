"""PostgreSQL goes down without a word, again and again, under engines at work."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from perdure import EngineSettings
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from tests.servers import Server, start_postgres
from tests.torture import checks
from tests.torture.load import Clients, assert_none_lost, until_all_end
from tests.torture.processes import Child, Children, deadline, until
from tests.torture.programs.effects import Ledger

SETTINGS = EngineSettings(recovery_seconds=0.5, poll_seconds=0.5, lease_seconds=10.0, heartbeat_seconds=2.0)
END_SECONDS = 90.0
CLIENTS = 8
PROGRESS = 20
"""Runs that must end after a restart before the next one."""


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_engines_survive_restarts_of_postgres(tmp_path: Path):
    await restart_again_and_again(tmp_path, restarts=4, between=(0.2, 2.0))


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_engines_survive_50_restarts_of_postgres(tmp_path: Path):
    await restart_again_and_again(tmp_path, restarts=50, between=(2.0, 15.0))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_engines_survive_the_loss_of_their_connections(
    postgres_server: Server, postgres_url: str, tmp_path: Path
):
    """As a proxy or an administrator cuts them: at any moment, at most a few at a time."""
    seed = checks.chosen_seed()
    print(f"seed {seed}")
    cut = (
        "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND datname = current_database() ORDER BY random() LIMIT 2) AS chosen"
    )
    chance = random.Random(seed)
    database = postgres_url.partition("@/")[2].partition("?")[0]
    cuts = 0

    async def cut_now_and_then() -> None:
        nonlocal cuts
        while cuts < 60:
            await asyncio.sleep(chance.uniform(0.0, 0.4))
            cuts += int((await asyncio.to_thread(postgres_server.psql, cut, database=database)).strip())

    ledger = Ledger(tmp_path / "ledger")
    async with Children(tmp_path, ledger.environment) as children:
        engines = [await children.start_engine(postgres_url, SETTINGS) for _ in range(2)]
        clients = Clients(lambda: engines, seed=seed)
        async with deadline(180, lambda: f"{story(engines)}; seed {seed}"), asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(clients.work(pause_seconds=0.1))
            await cut_now_and_then()
            clients.stop()
        async with checks.opened(postgres_url) as store:
            await until_all_end(store, END_SECONDS, lambda: f"{story(engines)}; seed {seed}")
        await leave(engines)
    dumps = await checks.assert_whole(postgres_url, ledger, children.pids)
    assert_none_lost(dumps, clients)
    assert len(dumps) >= 50
    print(f"{cuts} connections cut, {len(dumps)} runs, starts repeated: {dict(clients.repeated)}")


async def restart_again_and_again(folder: Path, *, restarts: int, between: tuple[float, float]) -> None:
    seed = checks.chosen_seed()
    print(f"seed {seed}")
    chance = random.Random(seed)
    ledger = Ledger(folder / "ledger")
    in_progress: list[int] = []
    with start_postgres() as server:
        async with Children(folder, ledger.environment) as children:
            engines = [await children.start_engine(server.url, SETTINGS) for _ in range(2)]
            clients = Clients(lambda: engines, seed=seed)
            async with deadline(restarts * 40, lambda: f"{story(engines)}; seed {seed}"), asyncio.TaskGroup() as group:
                for _ in range(CLIENTS):
                    group.create_task(clients.work(pause_seconds=0.1))
                for _ in range(restarts):
                    await until_progress(server.url, f"{story(engines)}; seed {seed}")
                    await asyncio.sleep(chance.uniform(*between))
                    in_progress.append(await running(server.url))
                    await asyncio.to_thread(server.restart, immediate=True)
                    assert all(engine.is_alive for engine in engines), story(engines)
                await until_progress(server.url, f"{story(engines)}; seed {seed}")
                clients.stop()
            async with checks.opened(server.url) as store:
                await until_all_end(store, END_SECONDS, lambda: f"{story(engines)}; seed {seed}")
            await leave(engines)
        dumps = await checks.assert_whole(server.url, ledger, children.pids)
    assert_none_lost(dumps, clients)
    taken = sum(len(checks.takeovers(dump)) for dump in dumps.values())
    # Not vacuous: every restart found runs in progress.
    assert min(in_progress) > 0
    assert len(dumps) >= PROGRESS * restarts
    print(
        f"{restarts} restarts with {in_progress} runs in progress, {len(dumps)} runs, {taken} takeovers, starts repeated: "
        f"{dict(clients.repeated)}"
    )


async def leave(engines: list[Child]) -> None:
    """They have survived: each still does as it is told, and goes in peace."""
    for engine in engines:
        engine.tell("leave")
        assert await engine.ended() == 0, engine.log()[-2_000:]


async def until_progress(url: str, story: str) -> None:
    """Wait until the engines have found their way back and have ended some more runs."""

    async def ended(store: Store) -> int:
        return Counter((await checks.statuses(store)).values())[RunStatus.COMPLETED]

    async with checks.opened(url) as store:
        before = await ended(store)

        async def is_enough() -> bool:
            return await ended(store) >= before + PROGRESS

        await until(is_enough, 60, f"nothing goes on after a restart: {story}")


async def running(url: str) -> int:
    async with checks.opened(url) as store:
        return Counter((await checks.statuses(store)).values())[RunStatus.RUNNING]


def story(engines: list[Child]) -> str:
    return "\n".join(f"{engine.name}: {engine.log()[-3_000:]}" for engine in engines)
