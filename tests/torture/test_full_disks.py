"""No room is left where the database is: clear errors, nothing damaged, and work goes on when there is room again."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from perdure import EngineSettings
from perdure.journal.states import RunStatus
from perdure.store.base import Store
from perdure.store.shapes import RunDump
from tests.torture import checks
from tests.torture.processes import Child, Children, until
from tests.torture.programs.effects import Ledger
from tests.torture.programs.workloads import diamond_result

PATIENT = EngineSettings(recovery_seconds=0.3, poll_seconds=0.3, patience_seconds=60.0)
HASTY = msgspec.structs.replace(PATIENT, patience_seconds=0.5)
FORGOTTEN = msgspec.structs.replace(HASTY, lease_seconds=1.0, heartbeat_seconds=0.3)
"""Its lease runs out before there is room again."""
MILLIS = 400
DISK_BYTES = 8 << 20
LARGEST_FILE_BYTES = 1 << 16
"""Less than SQLite's log has by the time that the tables are there, and more than what the engine says meanwhile."""
END_SECONDS = 30.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem that is soon full."""
    place = tmp_path / "disk"
    place.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "perdure-torture", place], capture_output=True, check=False
    )
    if mounting.returncode != 0:
        pytest.skip(f"a filesystem cannot be mounted here: {mounting.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [PATIENT, HASTY, FORGOTTEN], ids=["patient", "hasty", "forgotten"])
async def test_runs_go_on_when_a_full_disk_has_room_again(small_disk: Path, tmp_path: Path, settings: EngineSettings):
    url = f"sqlite:///{small_disk / 'perdure.db'}"
    filler = small_disk / "filler"
    ledger = Ledger(tmp_path / "ledger")
    async with Children(tmp_path, ledger.environment) as children:
        engine = await children.start_engine(url, settings)
        await start(engine, "in-progress", 1)
        await until(lambda: ledger.count() > 0, END_SECONDS, "nothing begins")

        fill(filler)
        await until(lambda: "store_not_ready" in engine.log(), END_SECONDS, lambda: f"no trouble: {engine.log()}")
        await until(lambda: engine.log().count("no room left") > 3, END_SECONDS, lambda: f"no word: {engine.log()}")
        if settings is FORGOTTEN:
            await until(lambda: "lease_lost engine_id" in engine.log(), END_SECONDS, lambda: engine.log()[-2_000:])
        if settings is HASTY:
            refused = await start(engine, "refused", 2)
            assert refused["error"] == "store_full"
            assert "no room left" in refused["message"]

        filler.unlink()
        await start(engine, "afterwards", 3)
        async with checks.opened(url) as store:
            await until_completed(store, "in-progress", engine)
            await until_completed(store, "afterwards", engine)
        assert engine.is_alive
        engine.tell("leave")
        assert await engine.ended() == 0, engine.log()[-2_000:]
    dumps = await assert_results(url, ledger, {"in-progress": 1, "afterwards": 3})
    if settings is HASTY:
        # Dropped, and taken up again by the same engine.
        assert [claim.previous for claim in checks.takeovers(dumps["in-progress"])] == [engine.engine_id]


@pytest.mark.slow
async def test_a_run_whose_engine_dies_on_a_full_disk_goes_on_later(small_disk: Path, tmp_path: Path):
    url = f"sqlite:///{small_disk / 'perdure.db'}"
    filler = small_disk / "filler"
    ledger = Ledger(tmp_path / "ledger")
    async with Children(tmp_path, ledger.environment) as children:
        engine = await children.start_engine(url, PATIENT)
        await start(engine, "in-progress", 1)
        await until(lambda: ledger.count() > 0, END_SECONDS, "nothing begins")
        fill(filler)
        await until(lambda: "store_not_ready" in engine.log(), END_SECONDS, lambda: f"no trouble: {engine.log()}")
        engine.kill()
        await engine.ended()
        filler.unlink()

        successor = await children.start_engine(url, PATIENT)
        async with checks.opened(url) as store:
            await until_completed(store, "in-progress", successor)
    dumps = await assert_results(url, ledger, {"in-progress": 1})
    assert len(checks.takeovers(dumps["in-progress"])) == 1


@pytest.mark.slow
async def test_runs_go_on_after_writes_have_failed(sqlite_url: str, tmp_path: Path):
    """As where a quota or a limit on the size of files is met: the kernel refuses every write behind it."""
    ledger = Ledger(tmp_path / "ledger")
    async with Children(tmp_path, ledger.environment) as children:
        engine = await children.start_engine(sqlite_url, HASTY)
        await start(engine, "in-progress", 1)
        await until(lambda: ledger.count() > 0, END_SECONDS, "nothing begins")

        with file_size_limit(engine, LARGEST_FILE_BYTES):
            await until(lambda: "store_not_ready" in engine.log(), END_SECONDS, lambda: f"no trouble: {engine.log()}")
            refused = await start(engine, "refused", 2)
            assert refused["error"] in ("store_full", "store_unavailable")

        await start(engine, "afterwards", 3)
        async with checks.opened(sqlite_url) as store:
            await until_completed(store, "in-progress", engine)
            await until_completed(store, "afterwards", engine)
        assert engine.is_alive
    await assert_results(sqlite_url, ledger, {"in-progress": 1, "afterwards": 3})


def fill(filler: Path) -> None:
    """Take all the room there is."""
    file = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for size in (1 << 16, 1 << 12, 1):
            while True:
                try:
                    os.write(file, b"x" * size)
                except OSError:
                    break
    finally:
        os.close(file)


@contextmanager
def file_size_limit(engine: Child, size: int) -> Generator[None]:
    """Have the kernel refuse to the process what would make a file larger than this."""
    before = resource.prlimit(engine.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(engine.pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(engine.pid, resource.RLIMIT_FSIZE, before)


async def start(engine: Child, run_id: str, number: int) -> dict[str, str]:
    inputs = {"number": number, "millis": MILLIS}
    return await engine.ask("start", workflow="diamond", run_id=run_id, inputs=inputs)


async def until_completed(store: Store, run_id: str, engine: Child) -> None:
    async def is_completed() -> bool:
        return (await checks.statuses(store)).get(run_id) is RunStatus.COMPLETED

    await until(is_completed, END_SECONDS, lambda: f"{run_id} does not go on: {engine.log()[-3_000:]}")


async def assert_results(url: str, ledger: Ledger, numbers: dict[str, int]) -> dict[str, RunDump]:
    dumps = await checks.assert_whole(url, ledger)
    for run_id, number in numbers.items():
        run = dumps[run_id].stored.run
        assert run.outputs is not None
        assert bytes(run.outputs["output"]) == str(diamond_result(number)).encode()
    return dumps
