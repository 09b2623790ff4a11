"""Damage to a real database, as an edited row, a restored backup or a log from elsewhere leaves it: SQL on both databases."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any

import apsw
import asyncpg

from perdure.ids import EventId, RunId, Seq, new_id
from perdure.journal import events as e
from perdure.journal.branching import branch_state
from perdure.journal.projection import Projection, fold
from perdure.store import branches, rows, waits
from perdure.store.opening import open_store
from perdure.testing.loop import VirtualLoop

PROJECT = "default"
_NODE_COLUMNS = """project_id, run_id, branch_id, node_id, status, attempt, attempt_ended, generation, failures, lost, outputs,
error, checkpoint, reason, due, scheduled_at, started_at, ended_at, duration_ms, stream, last_seq"""
_WAIT_COLUMNS = """project_id, run_id, branch_id, wait_id, node_id, kind, name, occurrence, status, question, signal, signal_id,
due, result, responded_by, opened_at, settled_at, last_seq"""
Row = dict[str, Any]


class Damage:
    """Somebody else's session with a database, to whom constraints mean nothing."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def execute(self, sql: str, *values: Any) -> list[Row]:
        """Run a statement with `?` for values, and return rows by the names of their columns."""
        if self._url.startswith("sqlite"):
            connection = apsw.Connection(self._url.removeprefix("sqlite:///"))
            try:
                connection.set_busy_timeout(10_000)
                cursor = connection.execute(sql, values)
                names = [column[0] for column in cursor.get_description()]
                return [dict(zip(names, row, strict=True)) for row in cursor]
            except apsw.ExecutionCompleteError:  # it has no rows
                return []
            finally:
                connection.close()
        loop = asyncio.get_running_loop()
        with loop.outside() if isinstance(loop, VirtualLoop) else nullcontext():
            return await self._execute_on_postgres(sql, values)

    async def _execute_on_postgres(self, sql: str, values: Sequence[Any]) -> list[Row]:
        numbers = count(1)
        session: Any = await asyncpg.connect(self._url)
        try:
            await session.execute("SET session_replication_role = replica")  # foreign keys are not looked at
            found = await session.fetch(re.sub(r"\?", lambda _: f"${next(numbers)}", sql), *values)
            return [dict(row) for row in found]
        finally:
            await session.close()

    async def set_run(self, run_id: str, **columns: Any) -> None:
        """Edit the row of a run."""
        names = ", ".join(f"{name} = ?" for name in columns)
        await self.execute(f"UPDATE run_state SET {names} WHERE run_id = ?", *columns.values(), run_id)

    async def say_it_runs(self, run_id: str) -> None:
        """Have the row of a run say that it is running, whatever it was."""
        await self.execute(
            "UPDATE run_state SET status = 'running', ended_at = NULL, wake_at = NULL WHERE run_id = ?", run_id
        )

    async def row(self, run_id: str) -> Row:
        """Return the row of a run, as a backup keeps it."""
        return (await self.execute("SELECT * FROM run_state WHERE run_id = ?", run_id))[0]

    async def restore_row(self, row: Row) -> None:
        """Have the row of a run be what it was: its log goes on further."""
        await self.set_run(row["run_id"], **{name: row[name] for name in row if name not in ("project_id", "run_id")})

    async def cut_after(self, run_id: RunId, kind: type[e.Event]) -> Seq:
        """Have the log end with its last event of a kind, and the rows be those that belong to that end; return its number."""
        store = await open_store(self._url)
        try:
            dump = await store.dump_run(run_id)
        finally:
            await store.close()
        assert dump is not None
        last = next(entry.seq for entry in reversed(dump.events) if isinstance(entry.event, kind))
        await self._cut(run_id, last, fold(run_id, [entry for entry in dump.events if entry.seq <= last]))
        return last

    async def _cut(self, run_id: RunId, last: Seq, folded: Projection) -> None:
        await self.execute("DELETE FROM run_events WHERE run_id = ? AND seq > ?", run_id, last)
        await self.execute("DELETE FROM run_branches WHERE run_id = ? AND created_seq > ?", run_id, last)
        await self.execute("DELETE FROM run_node_state WHERE run_id = ?", run_id)
        await self.execute("DELETE FROM run_waits WHERE run_id = ?", run_id)
        key = (PROJECT, run_id)
        await self._insert("run_node_state", _NODE_COLUMNS, rows.node_rows(key, [*folded.nodes.values()]))
        await self._insert("run_waits", _WAIT_COLUMNS, [(*key, *waits.wait_row(wait)) for wait in folded.waits])
        run = folded.run
        changing = rows.changing_columns(run)
        await self.set_run(
            run_id,
            ended_at=run.ended_at,
            status=run.status.value,
            branch_id=run.branch_id,
            last_seq=run.last_seq,
            lease_epoch=run.epoch,
            started_at=run.started_at,
            **dict(zip(("outputs", "error", "failed_node", "reason", "recoveries", "wake_at"), changing, strict=True)),
        )

    async def append(self, run_id: str, created: e.BranchCreated, *, seq: int, at: int) -> None:
        """Have a branch be created on which the run never goes on."""
        (told,) = await self.execute("SELECT lease_epoch FROM run_state WHERE run_id = ?", run_id)
        entry = e.Recorded(
            seq=Seq(seq),
            id=EventId(new_id()),
            branch_id=created.parent,
            epoch=told["lease_epoch"],
            at=at,
            event=created,
        )
        columns = "project_id, run_id, seq, id, branch_id, epoch, event_type, event_time, node_id, payload"
        await self._insert("run_events", columns, rows.event_rows((PROJECT, run_id), [entry]))
        columns = """project_id, run_id, branch_id, parent_id, cut_seq, dropped, retried, given, reason, asked_as, created_at,
        created_seq, restored"""
        row = branches.branch_row(branch_state(created, seq=Seq(seq), at=at))
        await self._insert("run_branches", columns, [(PROJECT, run_id, *row)])
        await self.set_run(run_id, last_seq=seq)

    async def _insert(self, table: str, columns: str, found: Sequence[Sequence[Any]]) -> None:
        for row in found:
            marks = ", ".join("?" * len(row))
            plain = [getattr(value, "value", value) for value in row]
            await self.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", *plain)
