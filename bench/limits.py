"""What the machine itself allows: the raw cost of making one transition durable, without any engine around it.

A transition here is what every durable step needs at the least: one event row and one state row. Run as
`python -m bench.limits STORE_URL FOLDER`, it prints the figures, per second, as JSON.
"""
# asyncpg ships without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.places import PROJECT, scratch
from bench.servers import Postgres

MEASURED_SECONDS = 0.5
BATCHES = (1, 10, 100, 1_000)
EVENT = json.dumps({"type": "NodeCompleted", "node": "step", "attempt": 1, "output": {"n": 1}, "pad": "x" * 200})

SQLITE_SCHEMA = """
CREATE TABLE event (run TEXT, seq INTEGER, body TEXT, PRIMARY KEY (run, seq)) STRICT, WITHOUT ROWID;
CREATE TABLE state (run TEXT PRIMARY KEY, seq INTEGER, body TEXT) STRICT, WITHOUT ROWID;
INSERT INTO state VALUES ('run', 0, '{}');
"""
POSTGRES_SCHEMA = """
CREATE TABLE event (run text, seq bigint, body text, PRIMARY KEY (run, seq));
CREATE TABLE state (run text PRIMARY KEY, seq bigint, body text);
INSERT INTO state SELECT 'run-' || n, 0, '{}' FROM generate_series(0, 999) AS n;
"""
POSTGRES_ONE = """
WITH moved AS (UPDATE state SET seq = seq + 1, body = $2 WHERE run = $1 RETURNING run, seq)
INSERT INTO event SELECT run, seq, $2 FROM moved
"""
POSTGRES_BATCH = """
WITH moved AS (
    UPDATE state SET seq = state.seq + 1, body = given.body
    FROM unnest($1::text[], $2::text[]) AS given(run, body) WHERE state.run = given.run
    RETURNING state.run, state.seq, given.body)
INSERT INTO event SELECT run, seq, body FROM moved
"""


def measure_limits(postgres: Postgres | None) -> dict[str, float]:
    """Return the limits by name, per second, measured in fresh processes."""
    found: dict[str, float] = {}
    with scratch("limits") as folder:
        found |= _in_a_process(f"sqlite:///{folder}/limits.db", folder)
        if postgres:
            with postgres.database("limits") as url:
                found |= _in_a_process(url, folder)
    return found


def _in_a_process(url: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.limits", url, str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, cwd=PROJECT)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def fsync_rate(folder: Path) -> float:
    file = os.open(folder / "fsync", os.O_WRONLY | os.O_CREAT)

    def write_once() -> None:
        os.pwrite(file, b"x" * 512, 0)
        os.fsync(file)

    return _per_second(write_once)


def sqlite_rates(file: Path) -> dict[str, float]:
    import apsw

    connection = apsw.Connection(str(file))
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(SQLITE_SCHEMA)
    seq = 0

    def commit(batch: int) -> None:
        nonlocal seq
        connection.execute("BEGIN IMMEDIATE")
        for _ in range(batch):
            seq += 1
            connection.execute("INSERT INTO event VALUES ('run', ?, ?)", (seq, EVENT))
            connection.execute("UPDATE state SET seq = ?, body = ? WHERE run = 'run'", (seq, EVENT))
        connection.execute("COMMIT")

    return {_name("SQLite", batch): batch * _per_second(partial(commit, batch)) for batch in BATCHES}


async def postgres_rates(url: str) -> dict[str, float]:
    import asyncpg  # type: ignore[import-untyped]

    connection: Any = await asyncpg.connect(url)
    await connection.execute(POSTGRES_SCHEMA)
    for setting in ("fsync", "synchronous_commit"):
        assert await connection.fetchval(f"SHOW {setting}") == "on", f"{setting} is off"
    one, many = await connection.prepare(POSTGRES_ONE), await connection.prepare(POSTGRES_BATCH)
    rates: dict[str, float] = {}
    for batch in BATCHES:
        runs, bodies = [f"run-{n}" for n in range(batch)], [EVENT] * batch
        commits, deadline, started = 0, time.perf_counter() + MEASURED_SECONDS, time.perf_counter()
        while time.perf_counter() < deadline:
            await (one.fetch("run-0", EVENT) if batch == 1 else many.fetch(runs, bodies))
            commits += 1
        rates[_name("PostgreSQL", batch)] = batch * commits / (time.perf_counter() - started)
    await connection.close()
    return rates


def _per_second(action: Callable[[], None]) -> float:
    times, started = 0, time.perf_counter()
    while time.perf_counter() - started < MEASURED_SECONDS:
        action()
        times += 1
    return times / (time.perf_counter() - started)


def _name(store: str, batch: int) -> str:
    return f"{store}, {batch:,} per commit"


def main() -> None:
    url, folder = sys.argv[1], Path(sys.argv[2])
    if url.startswith("sqlite:///"):
        found = {"fsync of 512 bytes": fsync_rate(folder), **sqlite_rates(Path(url.removeprefix("sqlite:///")))}
    else:
        found = asyncio.run(postgres_rates(url))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
