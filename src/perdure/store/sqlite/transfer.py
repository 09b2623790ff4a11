"""Whole runs out of a SQLite file and into it, on connections of their own: what drives runs is not held up by reading, and by
writing only as long as that takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apsw

from perdure.ids import RunId, Seq
from perdure.journal.states import RunState
from perdure.store import branches, checkpoints, rows, waits
from perdure.store.records import Kind, Query, Record, Refused, by_kind, command_row, deletions_in, reading
from perdure.store.shapes import ArchivedRun, LogLine
from perdure.store.sqlite.archive import make_way
from perdure.store.sqlite.connection import REFUSALS

Select = Callable[[str, tuple[Any, ...]], Sequence[tuple[Any, ...]]]

_STATEMENTS: Mapping[Kind, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    Kind.BRANCH: ("create_branches", branches.branch_row),
    Kind.STEP: ("put_steps", rows.step_row),
    Kind.WAIT: ("put_waits", waits.wait_row),
    Kind.SIGNAL: ("put_signals", waits.signal_row),
    Kind.CHECKPOINT: ("put_checkpoints", checkpoints.checkpoint_row),
    Kind.TAG: ("tag_run", lambda tag: (tag.name,)),
    Kind.BLOB: ("use_blobs", lambda use: (use.digest, use.size)),
}
"""By kind: the statement that writes such records, and the columns that it takes after the project and the run."""


def read_records(select: Select, run_ids: Sequence[RunId]) -> Iterator[list[Record]]:
    """Yield all that is stored about these runs, one after the other. `select` reads one state of the database."""
    for run_id in run_ids:
        steps = reading(run_id)
        answer: Sequence[tuple[Any, ...]] | None = None
        try:
            while True:
                step = steps.send(answer)
                answer = None
                if isinstance(step, Query):
                    answer = select(step.statement, step.values)
                else:
                    yield step
        except StopIteration:
            pass


def write_records(
    connection: apsw.Connection,
    sql: Mapping[str, str],
    project: str,
    pages: Iterable[Sequence[Record]],
    *,
    from_archive: ArchivedRun | None,
    instead_of: Seq | None,
) -> bool:
    """Write a whole run inside a transaction. False if one with its id is there. Raises Refused."""
    run_id: RunId | None = None
    for page in pages:
        for kind, records in by_kind(page):
            try:
                if kind is Kind.RUN:
                    (run,) = records
                    run_id = RunId(run.run_id)
                    if from_archive is not None:
                        place = (from_archive.file, from_archive.position)
                        connection.execute(sql["forget_archive"], (project, run_id, *place))
                    if instead_of is not None and not make_way(connection, sql, project, run_id, instead_of):
                        return False
                    if not _create(connection, sql, project, run):
                        return False
                elif kind is not Kind.VERSION:
                    assert run_id is not None, "a run's own row comes first"
                    statement, bindings = _bindings(kind, records, (project, run_id))
                    connection.executemany(sql[statement], bindings)
                    for at in deletions_in(records):
                        connection.execute(sql["add_deletion"], (project, run_id, at))
            except (*REFUSALS, OverflowError, UnicodeError) as error:
                raise Refused(f"{type(error).__name__}: {error}") from error
    return True


def _create(connection: apsw.Connection, sql: Mapping[str, str], project: str, run: RunState) -> bool:
    binding = (project, run.run_id, None, run.epoch, *rows.run_row(run))
    return connection.execute(sql["create_run"], binding).fetchone() is not None


def _bindings(kind: Kind, records: Sequence[Any], key: tuple[str, ...]) -> tuple[str, list[tuple[Any, ...]]]:
    match kind:
        case Kind.EVENT:
            return "append_events", rows.event_rows(key, records)
        case Kind.NODE:
            return "put_nodes", rows.node_rows(key, records)
        case Kind.ITEM:
            return "put_items", rows.item_rows(key, records)
        case Kind.COMMAND:
            return "keep_commands", [(key[0], *command_row(record)) for record in records]
        case Kind.LOG:
            lines: Sequence[LogLine] = records
            return "append_logs", [(key[0], *rows.log_row(line)) for line in lines]
        case _:
            statement, columns_of = _STATEMENTS[kind]
            return statement, [(*key, *columns_of(record)) for record in records]
