"""An engine that is stopped for longer than its lease, taken for dead, and woken: it must not change a row."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from perdure import EngineSettings
from perdure.errors import StoreLocked
from perdure.ids import CommandId, RunId
from perdure.journal import events as e
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.shapes import Command, RunDump
from tests.servers import Databases
from tests.torture import checks
from tests.torture.holding import hold_commit, is_holding, prepare_holding
from tests.torture.processes import Child, Children, until
from tests.torture.programs.effects import Ledger
from tests.torture.programs.workloads import halting_result

LEASE_SECONDS = 1.0
PAUSE_SECONDS = 2.2 * LEASE_SECONDS
SETTINGS = EngineSettings(
    lease_seconds=LEASE_SECONDS, heartbeat_seconds=0.3, recovery_seconds=0.3, poll_seconds=0.3, grace_seconds=1.0
)
POINTS = ("idle", "body", "before the fence", "behind the fence", "after the commit")
PATIENCE_SECONDS = 30.0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_woken_owner_changes_nothing_on_sqlite(tmp_path: Path):
    await torment(["sqlite"] * len(POINTS), tmp_path, samples=3)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_woken_owner_changes_nothing_on_postgres(postgres_databases: Databases, tmp_path: Path):
    with ExitStack() as databases:
        urls = [databases.enter_context(postgres_databases.fresh()) for _ in POINTS]
        await torment(urls, tmp_path, samples=3)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
async def test_owners_are_woken_200_times_at_each_point_on_sqlite(tmp_path: Path):
    await torment(["sqlite"] * len(POINTS), tmp_path, samples=200)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
async def test_owners_are_woken_200_times_at_each_point_on_postgres(postgres_databases: Databases, tmp_path: Path):
    with ExitStack() as databases:
        urls = [databases.enter_context(postgres_databases.fresh()) for _ in POINTS]
        await torment(urls, tmp_path, samples=200)


@pytest.mark.slow
@pytest.mark.parametrize("recover", [True, False], ids=["recovering", "for-this-run-only"])
async def test_an_owner_that_nobody_has_missed_goes_on(store_url: str, tmp_path: Path, recover: bool):
    ledger = Ledger(tmp_path / "ledger")
    async with Children(tmp_path, ledger.environment) as children:
        alone = await children.start_engine(store_url, SETTINGS, pausable=True, recover=recover)
        await alone.ask("arm", point="body", run_id="r")
        await alone.ask("start", workflow="halting", run_id="r", inputs={"number": 1, "falters": False})
        waiting = asyncio.create_task(alone.ask("wait", run_id="r"))
        await until(lambda: alone.is_stopped, PATIENCE_SECONDS, "the process does not stop in the body")

        await asyncio.sleep(PAUSE_SECONDS)
        alone.kill(signal.SIGCONT)

        assert (await waiting) == {"id": 3, "said": "ended", "status": "completed"}
    dump = (await checks.assert_whole(store_url, ledger, children.pids))["r"]
    assert [claim.previous for claim in checks.takeovers(dump)] == [alone.engine_id]


@pytest.mark.slow
async def test_an_owner_that_naps_within_its_lease_keeps_the_run(store_url: str, tmp_path: Path):
    """Its lease has become so old that it holds bodies back when it wakes; it renews it, and they go on."""
    ledger = Ledger(tmp_path / "ledger")
    settings = msgspec.structs.replace(SETTINGS, lease_seconds=5.0)
    async with Children(tmp_path, ledger.environment) as children, checks.opened(store_url) as store:
        owner, _ = [await children.start_engine(store_url, settings, pausable=True) for _ in range(2)]
        await owner.ask("arm", point="after the commit", run_id="r")
        await owner.ask("start", workflow="halting", run_id="r", inputs={"number": 1, "falters": False})
        await until(lambda: owner.is_stopped, PATIENCE_SECONDS, "the process does not stop after the commit")

        await asyncio.sleep(0.75 * settings.lease_seconds)
        owner.kill(signal.SIGCONT)

        assert (await owner.ask("wait", run_id="r"))["status"] == "completed"
        assert [row.engine_id for row in await checks.engines_of(store, owner.pid)] == [owner.engine_id]
    dump = (await checks.assert_whole(store_url, ledger, children.pids))["r"]
    assert checks.owners_of(dump) == {1: owner.engine_id}


async def torment(urls: Sequence[str], folder: Path, *, samples: int) -> None:
    """Stop engines at all points at once, each on a store of its own, again and again."""
    seed = checks.chosen_seed()
    print(f"seed {seed}")
    async with asyncio.TaskGroup() as group:
        for point, url in zip(POINTS, urls, strict=True):
            place = folder / point.replace(" ", "-")
            place.mkdir()
            store_url = f"sqlite:///{place / 'perdure.db'}" if url == "sqlite" else url
            group.create_task(stop_again_and_again(point, store_url, place, samples, random.Random(seed)))


async def stop_again_and_again(point: str, url: str, folder: Path, samples: int, chance: random.Random) -> None:
    ledger = Ledger(folder / "ledger")
    in_transaction = point == "behind the fence"
    async with Children(folder, ledger.environment) as children, checks.opened(url) as store:
        if in_transaction and not url.startswith("sqlite:"):
            await prepare_holding(url)
        engines = [await children.start_engine(url, SETTINGS, pausable=True) for _ in range(2)]
        pair = Pair(children, url, store, ledger, engines)
        for number in itertools.count():
            run_id = f"r{number}"
            if in_transaction and url.startswith("sqlite:"):
                await pair.stop_in_transaction(run_id, kill=chance.random() < 0.3)
            else:
                await pair.stop(point, run_id)
            pair.swap()
            if pair.done == samples:
                break
            assert number < 2 * samples + 10, f"stopped in a transaction too often; {point} of {url}"
    dumps = await checks.assert_whole(url, ledger, children.pids)
    assert all(dump.stored.run.status is RunStatus.COMPLETED for dump in dumps.values())
    print(f"{point}: {pair}")


class Pair:
    """Two engines on one store: one is stopped, the other one takes over, and then the other way round."""

    def __init__(self, children: Children, url: str, store: Store, ledger: Ledger, engines: list[Child]) -> None:
        self._children = children
        self._url = url
        self._store = store
        self._ledger = ledger
        self._owner, self._other = engines
        self._takeovers: list[float] = []
        self._by_chance = 0
        """How often the process was inside a transaction of its heartbeat when it was stopped elsewhere."""
        self._locked_out = 0
        self.done = 0

    def __str__(self) -> str:
        slowest = max(self._takeovers, default=0.0)
        return (
            f"{self.done} woken after {len(self._takeovers)} takeovers within {slowest:.2f} s, {self._locked_out} times in a "
            f"transaction, {self._by_chance} times so by chance"
        )

    def swap(self) -> None:
        self._owner, self._other = self._other, self._owner

    async def stop(self, point: str, run_id: str) -> None:
        """Stop the owner for longer than its lease, have the other one finish the run, wake it, and compare."""
        deposed = await self._engine_id(self._owner)
        await self._stop_at(point, run_id)
        stopped = time.monotonic()
        if not await checks.can_be_written(self._url):
            # Another thread of it was renewing the lease: that is the case of `stop_in_transaction`.
            self._by_chance += 1
            self._owner.kill(signal.SIGCONT)
            await until(lambda: self._completed(run_id), PATIENCE_SECONDS, lambda: self._story(point, run_id))
            return
        dump = await until(lambda: self._completed(run_id), PATIENCE_SECONDS, lambda: self._story(point, run_id))
        self._takeovers.append(time.monotonic() - stopped)
        assert deposed in [claim.previous for claim in checks.takeovers(dump)], self._story(point, run_id)
        await asyncio.sleep(max(0.0, stopped + PAUSE_SECONDS - time.monotonic()))
        assert self._owner.is_stopped

        before, effects = await checks.rows_of(self._url), self._ledger.count()
        self._owner.kill(signal.SIGCONT)
        await self._until_rejoined(deposed, self._story(point, run_id))
        assert await checks.rows_of(self._url) == before, self._story(point, run_id)

        await self._prove_alive(self._owner, f"{run_id}-after")
        assert not [effect for effect in self._ledger.effects()[effects:] if effect.run_id == run_id]
        rows = await checks.rows_of(self._url)
        kept = {table: [row for row in rows[table] if f"'{run_id}'" in row] for table in before}
        assert kept == {table: [row for row in before[table] if f"'{run_id}'" in row] for table in before}
        self.done += 1

    async def stop_in_transaction(self, run_id: str, *, kill: bool) -> None:
        """Stop the owner inside a transaction on SQLite: nothing can break it, all others say so, and go on afterwards."""
        deposed = await self._engine_id(self._owner)
        said = self._other.log()
        await self._stop_at("behind the fence", run_id)
        with pytest.raises(StoreLocked, match=rf"process {self._owner.pid}\b"):
            await self._store.add_command(Command(command_id=CommandId(run_id), run_id=RunId(run_id), kind="cancel"))
        await until(
            lambda: f"(process {self._owner.pid})" in self._other.log()[len(said) :],
            PATIENCE_SECONDS,
            lambda: f"the other engine does not say that it is locked out: {self._other.log()[-2_000:]}",
        )
        assert (await checks.statuses(self._store))[run_id] is RunStatus.RUNNING

        self._owner.kill(signal.SIGKILL if kill else signal.SIGCONT)
        if kill:
            await self._owner.ended()
            self._owner = await self._children.start_engine(self._url, SETTINGS, pausable=True)
        else:
            await self._until_rejoined(deposed, self._story("behind the fence", run_id))
        await until(lambda: self._completed(run_id), PATIENCE_SECONDS, lambda: self._story("behind the fence", run_id))
        await self._prove_alive(self._owner, f"{run_id}-after")
        checks.assert_file_sound(self._url)
        self._locked_out += 1
        self.done += 1

    async def _stop_at(self, point: str, run_id: str) -> None:
        owner, inputs = self._owner, {"number": 1, "falters": point == "idle"}
        holds = point == "behind the fence" and not self._url.startswith("sqlite:")
        if holds:
            await hold_commit(self._url, run_id, seconds=PAUSE_SECONDS)
        elif point != "idle":
            await owner.ask("arm", point=point, run_id=run_id)
        await owner.ask("start", workflow="halting", run_id=run_id, inputs=inputs)
        if holds:
            await until(lambda: is_holding(self._url), PATIENCE_SECONDS, "the commit is not held")
        if point == "idle":
            await until(lambda: self._has_failed_once(run_id), PATIENCE_SECONDS, "nothing fails")
        if holds or point == "idle":
            owner.kill(signal.SIGSTOP)
        await until(lambda: owner.is_stopped, PATIENCE_SECONDS, lambda: f"not stopped {point}: {owner.log()[-2_000:]}")

    async def _until_rejoined(self, deposed: str, story: str) -> None:
        """The woken engine has noticed that it was taken for dead, and is back under another name."""

        async def is_back() -> bool:
            return any(row.engine_id != deposed for row in await checks.engines_of(self._store, self._owner.pid))

        await until(is_back, PATIENCE_SECONDS, f"the woken engine does not come back. {story}")

    async def _prove_alive(self, engine: Child, run_id: str) -> None:
        await engine.ask("start", workflow="halting", run_id=run_id, inputs={"number": 2, "falters": False})
        dump = await until(lambda: self._completed(run_id), PATIENCE_SECONDS, lambda: self._story("afterwards", run_id))
        assert dump.stored.run.outputs is not None
        assert bytes(dump.stored.run.outputs["output"]) == str(halting_result(2)).encode()

    async def _engine_id(self, engine: Child) -> str:
        rows = await until(lambda: checks.engines_of(self._store, engine.pid), PATIENCE_SECONDS, "no engine is alive")
        return rows[-1].engine_id

    async def _completed(self, run_id: str) -> RunDump | None:
        dump = await self._store.dump_run(RunId(run_id))
        return dump if dump is not None and dump.stored.run.status is RunStatus.COMPLETED else None

    async def _has_failed_once(self, run_id: str) -> bool:
        dump = await self._store.dump_run(RunId(run_id))
        return dump is not None and any(isinstance(entry.event, e.NodeFailed) for entry in dump.events)

    def _story(self, point: str, run_id: str) -> str:
        logs = "\n".join(f"{engine.name}: {engine.log()[-2_000:]}" for engine in (self._owner, self._other))
        return f"{point}, run {run_id} of {self._url}\n{logs}"
